"""The stages of an evaluation in the order they happen: material, plan, drawing, reference check, scoring."""
