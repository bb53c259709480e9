"""One training, written for each framework as its documentation advises; run by compare.py in a process of its own.

    python benchmarks/frameworks.py FRAMEWORK    reads {"case": ..., "batches": ..., "weights": FILE} from stdin, a line a run

The task, the cases and the clock are those of loop.py. Every function trains on the same batches from the same weights and
returns ``(net, steps)``; what the framework does not do by itself, such as accumulation in Ignite, the user writes here.
``folder`` is a temporary one for what is saved.
"""

import json
import sys
import tempfile
import warnings

import torch
from loop import (
    ACCUMULATE,
    BARE,
    CLIP,
    LOG_EVERY,
    SAVE_EVERY,
    VALIDATE_EVERY,
    VALIDATION,
    Saver,
    Timed,
    lightloop,
    make_data,
    make_net,
    make_optimizer,
    make_schedule,
    plain,
)
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")


def tuned(case, data, folder):
    """The plain loop with every trick of torch's public interface that a user could know."""
    net = make_net(case)
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)
    if case in BARE:
        for inputs, labels in data:
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            for parameter in parameters:
                parameter.grad = None
        return net, len(data)
    schedule, steps, rows, running = make_schedule(optimizer), 0, [], []
    seed, saver = torch.tensor(1 / ACCUMULATE), Saver(folder, net, optimizer, schedule)
    for index, (inputs, labels) in enumerate(data):
        loss = F.cross_entropy(net(inputs), labels)
        running.append(loss.detach())
        loss.backward(seed)
        if (index + 1) % ACCUMULATE:
            continue
        gradients = [parameter.grad for parameter in parameters]
        norm = nn.utils.get_total_norm(gradients)
        if case in ("full", "saving") and not torch.isfinite(norm):
            raise ValueError("not finite")
        nn.utils.clip_grads_with_norm_(parameters, CLIP, norm)
        optimizer.step()
        schedule.step()
        for parameter in parameters:
            parameter.grad = None
        steps += 1
        if steps % LOG_EVERY == 0:
            rows.append({"loss": torch.stack(running).mean().item(), "norm": norm.item()})
        running.clear()
        if case == "saving":
            saver.after(index + 1, steps)
    return net, steps


def ignite(case, data, folder):
    from ignite.engine import Engine, Events

    net = make_net(case)
    optimizer = make_optimizer(net.parameters())
    schedule, rows = make_schedule(optimizer), []

    def update(engine, batch):
        inputs, labels = batch
        loss = F.cross_entropy(net(inputs), labels)
        if case in BARE:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()
        (loss / ACCUMULATE).backward()
        if engine.state.iteration % ACCUMULATE == 0:
            if case != "standard":
                engine.state.norm = nn.utils.get_total_norm([parameter.grad for parameter in net.parameters()])
                if not torch.isfinite(engine.state.norm) or not torch.isfinite(loss):
                    raise ValueError("not finite")
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return loss.detach()

    engine = Engine(update)
    if case not in BARE:
        engine.add_event_handler(
            Events.ITERATION_COMPLETED(every=LOG_EVERY * ACCUMULATE),
            lambda engine: rows.append({"loss": engine.state.output.item()}),
        )
    if case == "saving":
        saver = Saver(folder, net, optimizer, schedule)
        engine.add_event_handler(
            Events.ITERATION_COMPLETED(every=SAVE_EVERY),
            lambda engine: saver.after(engine.state.iteration, engine.state.iteration // ACCUMULATE),
        )
    engine.run(data, max_epochs=1)
    return net, engine.state.iteration // (1 if case in BARE else ACCUMULATE)


def accelerate(case, data, folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1 if case in BARE else ACCUMULATE)
    net = make_net(case)
    optimizer = make_optimizer(net.parameters())
    net, optimizer, schedule = accelerator.prepare(net, optimizer, make_schedule(optimizer))
    steps, rows, saver = 0, [], Saver(folder, net, optimizer, schedule)
    for index, (inputs, labels) in enumerate(data):
        with accelerator.accumulate(net):
            loss = F.cross_entropy(net(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients and case not in BARE:
                norm = accelerator.clip_grad_norm_(net.parameters(), CLIP)
                if case in ("full", "saving") and (not torch.isfinite(norm) or not torch.isfinite(loss)):
                    raise ValueError("not finite")
            optimizer.step()
            if case not in BARE:
                schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps += 1
            if case not in BARE and steps % LOG_EVERY == 0:
                rows.append({"loss": loss.item()})
        if case == "saving":
            saver.after(index + 1, steps)
    return accelerator.unwrap_model(net), steps


def lightning(case, data, folder):
    import lightning
    from lightning.pytorch.loggers.logger import Logger
    from lightning.pytorch.utilities import grad_norm

    class Memory(Logger):
        name, version = "memory", 0

        def __init__(self):
            super().__init__()
            self.rows = []

        def log_metrics(self, metrics, step=None):
            self.rows.append(metrics)

        def log_hyperparams(self, *arguments, **more):
            pass

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = make_net(case)

        def training_step(self, batch, batch_idx):
            inputs, labels = batch
            loss = F.cross_entropy(self.net(inputs), labels)
            if case not in BARE:
                self.log("loss", loss)
            if case in ("full", "saving") and not torch.isfinite(loss):
                raise ValueError("not finite")
            return loss

        def validation_step(self, batch, batch_idx):
            inputs, labels = batch
            self.log("val_loss", F.cross_entropy(self.net(inputs), labels))

        def on_before_optimizer_step(self, optimizer):
            if case in ("full", "saving"):
                norms = grad_norm(self, norm_type=2)
                self.log("grad_norm", norms["grad_2.0_norm_total"])

        def configure_optimizers(self):
            optimizer = make_optimizer(self.parameters())
            if case in BARE:
                return optimizer
            return [optimizer], [{"scheduler": make_schedule(optimizer), "interval": "step"}]

    more = {} if case in BARE else {"accumulate_grad_batches": ACCUMULATE, "gradient_clip_val": CLIP}
    if case == "saving":
        every = SAVE_EVERY // ACCUMULATE
        save = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=every)
        more |= {"callbacks": [save], "val_check_interval": VALIDATE_EVERY, "num_sanity_val_steps": 0}
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False if case in BARE else Memory(),
        log_every_n_steps=LOG_EVERY,
        enable_checkpointing=case == "saving",
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )
    module = Net()
    trainer.fit(
        module, data, Timed(VALIDATION) if case == "saving" else None
    )  # a list would be taken for several loaders
    return module.net, trainer.global_step


def transformers(case, data, folder):
    from transformers import Trainer, TrainingArguments

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make_net(case)

        def forward(self, inputs, labels):
            return {"loss": F.cross_entropy(self.net(inputs), labels)}

    class Named:
        def __init__(self, batches):
            self.batches = batches
            self.dataset, self.batch_size = list(range(32 * len(batches))), 32

        def __len__(self):
            return len(self.batches)

        def __iter__(self):
            return ({"inputs": inputs, "labels": labels} for inputs, labels in self.batches)

    class OurTrainer(Trainer):
        def get_train_dataloader(self):
            return Named(data)

        def get_eval_dataloader(self, eval_dataset=None):
            return Named(VALIDATION)

    net = Net()
    optimizer = make_optimizer(net.parameters())
    schedule = (
        make_schedule(optimizer) if case not in BARE else torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1)
    )
    steps = len(data) if case in BARE else len(data) // ACCUMULATE
    more = {"save_strategy": "no", "eval_strategy": "no"}
    if case == "saving":
        more = {"save_strategy": "steps", "save_steps": SAVE_EVERY // ACCUMULATE, "save_total_limit": 2}
        more |= {"eval_strategy": "steps", "eval_steps": VALIDATE_EVERY // ACCUMULATE, "prediction_loss_only": True}
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        gradient_accumulation_steps=1 if case in BARE else ACCUMULATE,
        max_grad_norm=0.0 if case in BARE else CLIP,
        logging_steps=LOG_EVERY,
        logging_strategy="no" if case in BARE else "steps",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )
    trainer = OurTrainer(
        net, arguments, train_dataset=list(range(len(data))), eval_dataset=VALIDATION, optimizers=(optimizer, schedule)
    )
    trainer.train()
    return net.net, trainer.state.global_step


FRAMEWORKS = {
    "plain": lambda case, data, folder: plain(case, data),
    "tuned": tuned,
    "lightloop": lambda case, data, folder: lightloop(case, data),
    "lightloop, fused": lambda case, data, folder: lightloop(case, data, fused_optimizer=True),
    "ignite": ignite,
    "accelerate": accelerate,
    "lightning": lightning,
    "transformers": transformers,
}


def main():
    torch.set_num_threads(1)
    train = FRAMEWORKS[sys.argv[1]]
    out, sys.stdout = sys.stdout, sys.stderr  # some frameworks print
    for line in sys.stdin:
        asked = json.loads(line)
        timed = Timed(make_data(asked["batches"], asked["case"]))
        with tempfile.TemporaryDirectory() as folder:
            net, steps = train(asked["case"], timed, folder)
        torch.save([parameter.detach() for parameter in net.parameters()], asked["weights"])
        print(json.dumps({"microseconds": timed.microseconds, "steps": steps}), file=out, flush=True)


if __name__ == "__main__":
    main()
