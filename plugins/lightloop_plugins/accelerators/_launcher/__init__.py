"""The processes that train together: who has started them, how they meet, and what they send one another."""
