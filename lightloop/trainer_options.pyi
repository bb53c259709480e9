"""The constructor of Trainer with the options of the built-in plugins; written by scripts/options_stub.py."""

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightloop.host.plugin import Plugin

Choice = bool | str | Plugin | type[Plugin] | Sequence[str | Plugin | type[Plugin]] | None

class TrainerOptions:
    def __init__(
        self,
        plugins: Sequence[str | type[Plugin] | Plugin] | str | type[Plugin] | Plugin = (),
        *,
        accelerator: Choice = None,
        accelerator_index: int | None = None,
        accumulate_grad_batches: int | Mapping[int, int] = 1,
        amp_level: str | None = None,
        async_save: bool = False,
        auto_lr_find: str | bool | None = None,
        auto_requeue: bool = False,
        auto_scale_batch_size: str | bool | None = None,
        automatic_optimization: bool = True,
        batch_size_find_attribute: str = "batch_size",
        callbacks: Any = ...,
        check_val_every_n_epoch: int | None = 1,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        compile: bool = False,
        compile_backend: str = "inductor",
        compile_dynamic: bool | None = None,
        compile_fullgraph: bool = False,
        compile_mode: str | None = None,
        cuda_graphs_guard: bool | None = None,
        cuda_index: int | None = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        ddp_backend: str | None = None,
        ddp_broadcast_buffers: bool = True,
        ddp_timeout: float = 1800.0,
        default_root_dir: str | os.PathLike[str] | None = None,
        detect_anomaly: bool = False,
        devices: int | Literal["auto"] | None = None,
        early_stop_callback: bool | Any | None = None,
        early_stopping_check_finite: bool = True,
        early_stopping_check_on_train_epoch_end: bool | None = None,
        early_stopping_divergence_threshold: float | None = None,
        early_stopping_min_delta: float = 0.0,
        early_stopping_mode: Literal["min", "max", "auto"] = "min",
        early_stopping_monitor: str = "val_loss",
        early_stopping_patience: int = 3,
        early_stopping_stopping_threshold: float | None = None,
        early_stopping_strict: bool = True,
        early_stopping_verbose: bool = False,
        ema_buffers: bool = False,
        ema_decay: float | None = None,
        ema_device: str | None = None,
        ema_every: int = 1,
        ema_keep: bool = False,
        ema_validate: bool = False,
        ema_warmup: bool = False,
        enable_checkpointing: bool = True,
        enable_progress_bar: bool = True,
        end_on_signals: Sequence[str] = ...,
        fast_dev_run: bool | int = False,
        find_unused_parameters: bool = False,
        flush_logs_every_n_steps: int = 1,
        fsdp_backend: str | None = None,
        fsdp_blocks: tuple[str, ...] | list[str] = ...,
        fsdp_check_blocks: bool = False,
        fsdp_min_size: int = 1000000,
        fsdp_timeout: float = 1800.0,
        fused_optimizer: bool = False,
        gpus: Any = None,
        grad_norm_clipped: bool = False,
        grad_norm_key: str = "grad_{p}_norm_{name}",
        grad_norm_per_parameter: bool = True,
        gradient_clip_algorithm: Literal["norm", "value", "adaptive"] = "norm",
        gradient_clip_eps: float = 0.001,
        gradient_clip_val: float | None = None,
        horovod_compression: Literal["none", "fp16"] = "none",
        horovod_scale_lr: bool = False,
        limit_predict_batches: int | float = 1.0,
        limit_test_batches: int | float = 1.0,
        limit_train_batches: int | float = 1.0,
        limit_val_batches: int | float = 1.0,
        log_device_stats: int | float | str | Any | None = None,
        log_every_n_steps: int | float | str | Any | None = 50,
        log_lr: Literal["step", "epoch"] | None = None,
        log_outputs: bool | None = None,
        logger: Choice = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        max_time: int | float | str | datetime.timedelta | Mapping[str, float] | None = None,
        min_epochs: int | None = None,
        min_steps: int | None = None,
        monitor: str | None = None,
        monitor_mode: Literal["min", "max"] = "min",
        monitor_strict: bool = False,
        nonfinite: Literal["warn", "skip_step", "drop_batch", "rewind", "stop"] | None = None,
        nonfinite_async: Literal["warn", "zero", "stop"] | None = None,
        nonfinite_async_every: int = 50,
        nonfinite_async_limit: int | None = None,
        nonfinite_keep_every: int = 1,
        nonfinite_limit: int | None = None,
        nonfinite_watch: Sequence[str] = ...,
        num_nodes: int | None = None,
        num_sanity_val_steps: int = 2,
        on_interrupt_raise: bool = False,
        on_save_error: Literal["raise", "warn"] = "raise",
        optimizer_frequencies: Sequence[int] | None = None,
        overfit_batches: int | float = 0.0,
        pin_memory: bool = False,
        precision: int | str = 32,
        precision_growth_interval: int = 2000,
        precision_init_scale: float = 65536.0,
        print_nan_grads: bool = False,
        process_position: int = 0,
        profiler: object = None,
        progress_interval: float | None = None,
        read_ahead: bool = False,
        reload_dataloaders_every_n_epochs: int | bool = 0,
        requeue_signal: str = "SIGUSR1",
        resume: str | os.PathLike[str] | None = None,
        resume_strict: bool = False,
        run_name: str | None = None,
        run_version: int | str | None = None,
        running_loss_steps: int = 20,
        save_every: int | float | str | datetime.timedelta | Any | Mapping[int, Any] | None = "1 epoch",
        save_last: int = 2,
        save_on_exception: bool = False,
        save_top_k: int = 1,
        save_weights_only: bool = False,
        seed: int | None = None,
        skip_together: bool = False,
        split_on_oom: bool = False,
        spmd: Choice = None,
        strategy: Choice = None,
        swa_anneal: Literal["cos", "linear"] = "cos",
        swa_anneal_epochs: int = 10,
        swa_lr: float | None = None,
        swa_start: int | float | None = None,
        swa_update_bn: bool = True,
        tbptt_accumulate: bool = False,
        tbptt_time_dim: int | Mapping[str, int | None] = 1,
        tensorboard_flush_seconds: float = 10.0,
        terminate_on_nan: bool = False,
        terminate_on_nan_checks: Sequence[str] = ...,
        throughput_window: int = 50,
        toggle_optimizers: bool = True,
        tpu_cores: Any = None,
        trace: bool | str | os.PathLike[str] = False,
        track_grad_norm: float | str = -1,
        train_dataloaders: Any = None,
        truncated_bptt_steps: int | None = None,
        use_distributed_sampler: bool = True,
        val_check_interval: int | float | str | datetime.timedelta | Any = 1.0,
        val_dataloaders: Any = None,
        validation: Choice = None,
        weights_save_path: str | None = None,
        weights_summary: Literal["top", "full"] | int | None = "top",
        xla_shapes: int = 4,
        xla_spmd_shard_parameters: bool = False,
        **options: Any,
    ) -> None:
        """Choose the plugins of the runs, and set their options; those of third-party plugins are options too.

        Args:
            plugins: what to add to the default plugins (``"ema"``), or to leave out (``"-progress"``).
            accelerator: Where to train: 'auto', 'gpu', a device plugin, or a device type of torch; None is the CPU.
            accelerator_index: Number of the device; None is that of this process on its machine, from LOCAL_RANK, else 0.
            accumulate_grad_batches: Batches per optimizer step, or a schedule {epoch: batches}, epochs counted from 0.
            amp_level: Refused: it was a setting of apex.
            async_save: Write on a thread while training goes on.
            auto_lr_find: Attribute of the module to set to a learning rate that is looked for first; True is 'lr'.
            auto_requeue: In a SLURM job, save and put the job back into the queue when the signal comes, and go on when it starts again.
            auto_scale_batch_size: Look for the largest batch size first: 'power', 'binary', or True for 'power'.
            automatic_optimization: False: training_step goes backward and steps by itself; so it does where the module says automatic_optimization = False.
            batch_size_find_attribute: The module's attribute that holds the batch size.
            callbacks: Objects whose methods are called at the events of a run.
            check_val_every_n_epoch: Validate in every n-th epoch only; None counts the batches of val_check_interval across epochs.
            checkpoint_dir: Where checkpoints are kept: a path or a URL that fsspec knows; by default 'checkpoints' in the run's directory.
            compile: Compile the module's steps with torch.compile.
            compile_backend: What torch.compile compiles with.
            compile_dynamic: Whether shapes may change without compiling anew; None finds out.
            compile_fullgraph: Refuse a step that is not one graph; such a step cannot log.
            compile_mode: Of torch.compile: 'default', 'reduce-overhead', 'max-autotune' …; None leaves it to torch.
            cuda_graphs_guard: Whether to copy what a step gives out of the memory of CUDA graphs; None finds out whether there are any.
            cuda_index: Number of the device; None is that of this process on its machine, from LOCAL_RANK, else 0.
            dataloaders: What is evaluated; as good as the second argument.
            datamodule: A LightningDataModule, whose loaders are used.
            ddp_backend: Backend of torch.distributed for tensors; None is gloo on the CPU, and the one made for the device elsewhere.
            ddp_broadcast_buffers: Give all ranks the buffers of rank 0 before each forward.
            ddp_timeout: How many seconds a process waits for the others before it is an error.
            default_root_dir: Where runs leave their files.
            detect_anomaly: Whether autograd checks each backward operation for NaN; slow.
            devices: How many devices of each machine train together; 'auto' and -1 are all that it has, or one process on the CPU.
            early_stop_callback: True ends training early, by val_loss unless something else is said; an EarlyStopping says all of it.
            early_stopping_check_finite: End at once when the metric is NaN or infinite.
            early_stopping_check_on_train_epoch_end: True checks at the end of training epochs only, False after validation only.
            early_stopping_divergence_threshold: End at once when the metric is worse than this.
            early_stopping_min_delta: Changes up to this size are no improvement.
            early_stopping_mode: What is better: less, more; auto is more where the metric's name has 'acc' in it.
            early_stopping_monitor: The metric to watch.
            early_stopping_patience: End after so many checks in a row without an improvement.
            early_stopping_stopping_threshold: End at once when the metric is better than this.
            early_stopping_strict: Whether a metric that is missing when it is due is an error.
            early_stopping_verbose: Tell of each improvement through logging.
            ema_buffers: Average floating-point buffers too (running statistics), which else stay the module's.
            ema_decay: How much of the average an update keeps, from 0 to below 1; None, where the plugin is listed, is 0.999.
            ema_device: Where the average is kept ('cpu' costs a copy per update); None is beside the weights.
            ema_every: Steps between two updates.
            ema_keep: Leave the average in the module when training has ended.
            ema_validate: Validate with the average.
            ema_warmup: Begin with a smaller decay that grows with the updates.
            enable_checkpointing: Save checkpoints.
            enable_progress_bar: Show progress.
            end_on_signals: The signals that end a fit in good order; () is none.
            fast_dev_run: Run so many batches of everything and write nothing; True is one.
            find_unused_parameters: Look, after each forward, which parameters the loss does not depend on; else that is an error.
            flush_logs_every_n_steps: Steps between two writes to the disk; what is not yet written when the run ends is written then.
            fsdp_backend: Backend of torch.distributed for tensors; None is gloo on the CPU, and the one made for the device elsewhere.
            fsdp_blocks: Names of the classes whose modules are sharded each by itself.
            fsdp_check_blocks: Have ranks tell one another which block they are about to gather, so that a branch which not all of them take is an error that names it; each block then waits for all ranks.
            fsdp_min_size: Without blocks: how many parameters make a module one that is sharded by itself.
            fsdp_timeout: How many seconds a process waits for the others before it is an error.
            fused_optimizer: Whether optimizers for which nothing else was chosen are fused.
            gpus: Old: how many GPUs, or the indices of the first ones; 0 is off.
            grad_norm_clipped: Whether to measure again, at a second pass, after clipping.
            grad_norm_key: How a metric is called; the total's name is 'total'.
            grad_norm_per_parameter: Whether to log each parameter's norm beside the total.
            gradient_clip_algorithm: What is limited: the total norm, each value, or each unit's norm relative to that of its weights.
            gradient_clip_eps: Adaptive: the least norm that a unit's weights count as.
            gradient_clip_val: Largest total norm, absolute value, or ratio of norms that gradients may have; None and 0 are off.
            horovod_compression: Send gradients as they are, or in float16, at half the size.
            horovod_scale_lr: Multiply each learning rate, and what its schedule goes by, with the number of processes.
            limit_predict_batches: Read so many batches of each prediction loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            limit_test_batches: Read so many batches of each test loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            limit_train_batches: Read so many batches of each training loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            limit_val_batches: Read so many batches of each validation loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            log_device_stats: Steps between two looks, or any other rhythm; None is off. Looks go into the rows of log_every_n_steps.
            log_every_n_steps: Steps between two rows, or any other rhythm ('10 s', '1 epoch'); None and 0 write no rows of steps.
            log_lr: Log them for each step or for each epoch.
            log_outputs: Log what steps return under 'log' and 'progress_bar'; None: if the first output of a stage has one of them.
            logger: the plugins of this kind, by name or as objects; False for none.
            max_epochs: Train at most so many epochs; -1 is no bound.
            max_steps: Train at most so many optimizer steps; -1 is no bound.
            max_time: Train for at most so long: seconds, '15 min', 'DD:HH:MM:SS', a timedelta, or its arguments in a mapping.
            min_epochs: Let no request stop training before so many epochs.
            min_steps: Let no request stop training before so many optimizer steps.
            monitor: The metric that ranks checkpoints; one is saved when it improves.
            monitor_mode: Whether the monitored metric is better low or high.
            monitor_strict: Whether a monitored metric that has not been logged is an error, instead of a warning once.
            nonfinite: What to do about a value that is NaN or infinite; None is nothing.
            nonfinite_async: What to do, without waiting, about gradients of NaN or infinity; None is nothing.
            nonfinite_async_every: Look at the number of events every so many windows.
            nonfinite_async_limit: Ask training to stop at so many events in consecutive windows.
            nonfinite_keep_every: Rewind: take a copy of the good state every so many steps.
            nonfinite_limit: Ask training to stop at so many events with no clean step between them.
            nonfinite_watch: What is watched: any of 'loss', 'grad' and 'param'.
            num_nodes: How many machines train together, each started by a launcher.
            num_sanity_val_steps: Batches of each validation loader to try before training; -1 is all, 0 none.
            on_interrupt_raise: Raise KeyboardInterrupt when everything has been closed, instead of returning a result.
            on_save_error: Whether a save that fails ends the run, or three in a row may fail with a warning.
            optimizer_frequencies: For how many windows in turn each optimizer steps, e.g. [5, 1]; None: as configure_optimizers says by 'frequency', and if it says nothing, all of them step in each.
            overfit_batches: Use only so many batches (int) or such a fraction (float) of the training and validation data; 0 is off.
            pin_memory: Read DataLoaders with pin_memory=True, where the device is a GPU.
            precision: Floating-point type: 32, 64, 'bf16-mixed', '16-mixed' (also 16), 'bf16-true' or '16-true'.
            precision_growth_interval: 16-mixed: double the scale after so many windows without overflow.
            precision_init_scale: 16-mixed: what losses are multiplied by at first.
            print_nan_grads: Gone; the error says what to write.
            process_position: Lines to leave free above the bar.
            profiler: True or 'simple', 'advanced', 'pytorch', a profiler, or a function; None is off.
            progress_interval: Seconds between two drawings; by default 0.2 for a bar and 10 for lines.
            read_ahead: Read one batch ahead of loaders without len(), so that the last batch of an epoch is known before it is trained on.
            reload_dataloaders_every_n_epochs: Ask for the loaders again every so many epochs; True is every epoch, 0 and False ask once.
            requeue_signal: The signal that says that the job's time is over.
            resume: Go on from a checkpoint: its path, a folder of them, or 'auto' for the newest of this experiment, if there is one; given to an evaluation, whose weights to take: 'best' as well.
            resume_strict: Refuse to resume where plugins or the environment differ, instead of a warning.
            run_name: What the runs of an experiment have in common; the module's class if None.
            run_version: The run's own name; one that is there already is gone on with. By default a new version_N.
            running_loss_steps: Steps to take the mean over.
            save_every: When to save: so many steps, '2 epochs', '500 batches', '15 min'; None saves at the end alone.
            save_last: Keep so many of the newest, from 1.
            save_on_exception: Save when an error ends the run; resumed from it, a run is not exact.
            save_top_k: Keep so many of the best by the monitored metric; -1 keeps all.
            save_weights_only: Save the module's weights and nothing else.
            seed: Seed of all random numbers, from 0 to 2**32 - 1; None leaves them as they are.
            skip_together: With several processes, pass over a batch on all of them where one has no loss for it; False is an error.
            split_on_oom: Cut batches into pieces when memory runs out, instead of failing.
            spmd: the plugins of this kind, by name or as objects; False for none.
            strategy: How several devices train together: the name of a strategy; 'auto' is ddp where a launcher has started several processes or devices is above 1; False is each process by itself.
            swa_anneal: The way it takes.
            swa_anneal_epochs: Epochs that the rate takes to get there; 0 is at once.
            swa_lr: Learning rate to go to while averaging; None leaves it alone.
            swa_start: Epoch from which weights are averaged, counted from 0; or a fraction of the training (0.75).
            swa_update_bn: Compute the statistics of batch normalization anew at the end.
            tbptt_accumulate: Accumulate the gradient over a batch's pieces and step once, not after each piece.
            tbptt_time_dim: The time dimension of all tensors of a batch; or of each by its path, {'inputs.text': 1, 'label': None}, None for what is in every piece, 1 for what is not named.
            tensorboard_flush_seconds: Seconds after which what was written is on disk.
            terminate_on_nan: Whether a loss, gradient or parameter that is NaN or infinite is an error.
            terminate_on_nan_checks: What is checked: any of 'loss', 'grad' and 'param'.
            throughput_window: Batches to take the mean over.
            toggle_optimizers: With several optimizers, gradients are computed only for the parameters of the one that a piece is for.
            tpu_cores: Old: how many TPU cores, or which one in a list; 0 is off.
            trace: True, or the path of the file of the trace; False is off.
            track_grad_norm: The p of the norm, any number above 0 or 'inf'; -1 is off.
            train_dataloaders: What fit trains on; as good as its second argument.
            truncated_bptt_steps: Cut batches of sequences into pieces of so many time steps; None is off.
            use_distributed_sampler: With several processes, let each read its own part of the data; False where samplers see to it themselves.
            val_check_interval: Validate every so many batches of an epoch (int) or each such fraction of it (float, 1.0 is at its end); or in any other rhythm: '500 steps', '10 min', a timedelta.
            val_dataloaders: What fit validates on; as good as its third argument.
            validation: the plugins of this kind, by name or as objects; False for none.
            weights_save_path: Gone; the error says what to write.
            weights_summary: How deep to go: 'top' is 1, 'full' to the end; None and 0 print nothing.
            xla_shapes: Warn when so many batches, after the first steps, had shapes that had to be compiled for.
            xla_spmd_shard_parameters: Keep of each parameter (and of what its optimizer remembers) only a part on each device, where its first dimension can be divided.
            options: options of plugins of other distributions.
        """
