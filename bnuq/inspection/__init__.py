"""The stages of an inspection."""
