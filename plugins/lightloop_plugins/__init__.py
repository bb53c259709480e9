"""The features of Lightloop: one plugin, one file."""
