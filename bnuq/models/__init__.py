"""Networks: checkpoints as they come, the architecture beside them, and the loaded module in evaluation mode."""
