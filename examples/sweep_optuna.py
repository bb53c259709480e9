"""Search for good hyperparameters with Optuna, and end the trials early that fall behind.

    pip install optuna ./examples/third_party/lightloop-optuna
    python examples/sweep_optuna.py [--trials 12] [--epochs 8]

Each trial trains a classifier of scikit-learn's handwritten digits. After each validation the accuracy goes to the study;
a run that the pruner gives up ends in good order. It ends with a table of the trials, the best one first.
"""

import argparse

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightloop import Module, Trainer


class Classifier(Module):
    def __init__(self, width, dropout, lr, weight_decay):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)


def load(batch_size=64):
    X, y = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(y))
    train, val = random_split(digits, [1437, 360], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size, shuffle=True), DataLoader(val, 360)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()

    def objective(trial):
        torch.manual_seed(0)
        module = Classifier(
            width=trial.suggest_categorical("width", [16, 64, 256]),
            dropout=trial.suggest_float("dropout", 0.0, 0.5),
            lr=trial.suggest_float("lr", 1e-5, 1e-1, log=True),
            weight_decay=trial.suggest_float("weight_decay", 1e-4, 1.0, log=True),
        )
        trainer = Trainer(
            max_epochs=arguments.epochs,
            seed=0,
            optuna_trial=trial,
            optuna_monitor="accuracy",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            weights_summary=None,
        )
        return trainer.fit(module, *load()).metrics["accuracy"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
    )
    study.optimize(objective, n_trials=arguments.trials)

    print(f"{'trial':>5} {'accuracy':>9} {'epochs':>7}  hyperparameters")
    for trial in sorted(study.trials, key=lambda trial: -trial.intermediate_values[max(trial.intermediate_values)]):
        accuracy = trial.intermediate_values[max(trial.intermediate_values)]
        values = ", ".join(f"{name}={value:.4g}" for name, value in trial.params.items())
        pruned = " pruned" if trial.state is optuna.trial.TrialState.PRUNED else ""
        print(f"{trial.number:>5} {accuracy:>9.2%} {len(trial.intermediate_values):>7}  {values}{pruned}")
    print(f"\nthe best of {len(study.trials)} trials: {study.best_value:.2%} with {study.best_params}")


if __name__ == "__main__":
    main()
