"""How a job or run looks in a terminal: sentences, frames, live displays and summaries shared by several commands."""
