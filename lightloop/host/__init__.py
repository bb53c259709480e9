"""The plugin host: what a plugin is, which are installed, which are live, in which order, and how their hooks are called."""
