"""Where logged values go."""
