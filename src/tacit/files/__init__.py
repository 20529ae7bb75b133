"""Files that users write, read with errors that name the place in the file and the remedy."""
