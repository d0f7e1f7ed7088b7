"""Published evaluations, asked again: the questions, their answers kept on disk, the tables."""
