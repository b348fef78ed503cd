"""The command line: data goes to stdout, words for people to stderr."""
