"""Files of networks, a module for each format."""
