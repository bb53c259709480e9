"""The roles that a plugin can have in a run: tags that it gives itself, by which others mean all that have one."""

ROLES = {
    "averages": "keeps an average of the weights, and evaluates or ends with it",
    "bounds": "ends a run after a number of epochs, steps or an amount of time",
    "guards": "looks for numbers that are no use, such as NaN, and stops, skips or warns",
    "interrupts": "hears the user, or the system, ask a run to end",
    "logs": "writes metrics down, somewhere: a logger",
    "saves": "saves the state of a run, or brings it back",
    "schedules": "changes learning rates or other hyperparameters as a run goes on",
    "searches": "looks for a hyperparameter by runs of its own, before the run",
    "shortens": "gives a run a part of its data",
    "stops": "stops a run for what its metrics are",
    "validates": "runs validation in the midst of a fit",
    "watches": "tells of a run: bars, summaries, profiles, statistics",
    "writes": "makes the folders and files in which others write",
}
"""Each role, and what a plugin with it does."""
