"""What plugins share, and users' own code: nothing here is the loop's, which imports none of it."""
