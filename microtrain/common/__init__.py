"""What all other packages may use: files, words, names, stack frames, threads."""
