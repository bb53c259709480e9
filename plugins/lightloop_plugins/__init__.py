"""The built-in plugins of Lightloop, one file or folder each."""
