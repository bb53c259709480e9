"""Device and strategy plugins: on which device, and in how many processes, a model runs."""
