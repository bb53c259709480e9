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
            accelerator_index: Index of the device; None uses LOCAL_RANK, else 0.
            accumulate_grad_batches: Batches per optimizer step, or a schedule {epoch: batches}, epochs counted from 0.
            amp_level: Not supported: it was a setting of apex.
            async_save: Write checkpoints on a background thread while training continues.
            auto_lr_find: Find a learning rate before training, and set this attribute of the module to it; True is 'lr'.
            auto_requeue: In a SLURM job, save and requeue the job when the signal comes, and resume when it starts again.
            auto_scale_batch_size: Find the largest batch size before training: 'power', 'binary', or True for 'power'.
            automatic_optimization: False: training_step goes backward and steps by itself; so it does where the module says automatic_optimization = False.
            batch_size_find_attribute: The module's attribute that holds the batch size.
            callbacks: Objects whose methods are called at the events of a run.
            check_val_every_n_epoch: Validate only every n-th epoch; None counts the batches of val_check_interval across epochs.
            checkpoint_dir: Where checkpoints are kept: a path or a URL that fsspec knows; by default 'checkpoints' in the run's directory.
            compile: Compile the module's steps with torch.compile.
            compile_backend: Backend of torch.compile.
            compile_dynamic: Compile for dynamic shapes, so that new shapes need no recompilation; None detects whether shapes change.
            compile_fullgraph: Raise an error unless each step compiles to a single graph; such steps cannot log.
            compile_mode: Mode of torch.compile: 'default', 'reduce-overhead', 'max-autotune' …; None is torch's default.
            cuda_graphs_guard: Copy what a step returns out of the memory of CUDA graphs; None does so if any are in use.
            cuda_index: Index of the device; None uses LOCAL_RANK, else 0.
            dataloaders: Data to evaluate; the same as the second argument of validate, test or predict.
            datamodule: LightningDataModule that provides the loaders.
            ddp_backend: Backend of torch.distributed for tensors; None is gloo on the CPU, and the one made for the device elsewhere.
            ddp_broadcast_buffers: Broadcast the buffers of rank 0 to all ranks before each forward.
            ddp_timeout: Seconds that a process waits for the others before it raises an error.
            default_root_dir: Root folder for the files of all runs.
            detect_anomaly: Let autograd check each backward operation for NaN; slow.
            devices: Number of devices to train on per machine; 'auto' and -1 use all of them, or one process on the CPU.
            early_stop_callback: True ends training early, by val_loss unless something else is said; an EarlyStopping says all of it.
            early_stopping_check_finite: Stop at once if the metric is NaN or infinite.
            early_stopping_check_on_train_epoch_end: True checks only at the end of training epochs, False only after validation.
            early_stopping_divergence_threshold: Stop at once if the metric is worse than this.
            early_stopping_min_delta: Only a change larger than this counts as an improvement.
            early_stopping_mode: What is better: less, more; auto is more where the metric's name has 'acc' in it.
            early_stopping_monitor: The metric to watch.
            early_stopping_patience: Number of checks in a row without improvement after which training stops.
            early_stopping_stopping_threshold: Stop at once if the metric is better than this.
            early_stopping_strict: Raise an error if the metric is missing when it is checked.
            early_stopping_verbose: Report each improvement through Python's logging.
            ema_buffers: Average floating-point buffers (running statistics) too; otherwise the module's are used.
            ema_decay: How much of the average an update keeps, from 0 to below 1; None, where the plugin is listed, is 0.999.
            ema_device: Where the average is kept ('cpu' costs a copy per update); None is beside the weights.
            ema_every: Steps between two updates.
            ema_keep: Leave the averaged weights in the module after training.
            ema_validate: Validate with the averaged weights.
            ema_warmup: Start with a smaller decay that grows with the number of updates.
            enable_checkpointing: Save checkpoints.
            enable_progress_bar: Show progress.
            end_on_signals: Signals that end a fit gracefully; () is none.
            fast_dev_run: Run only this many batches of every stage and write no files; True is one.
            find_unused_parameters: Find the parameters that the loss does not depend on after each forward; otherwise unused ones are an error.
            flush_logs_every_n_steps: Steps between two writes to the disk; what is not yet written when the run ends is written then.
            fsdp_backend: Backend of torch.distributed for tensors; None is gloo on the CPU, and the one made for the device elsewhere.
            fsdp_blocks: Names of the module classes to shard as separate blocks.
            fsdp_check_blocks: Have ranks tell one another which block they are about to gather, so that a branch which not all of them take is an error that names it; each block then waits for all ranks.
            fsdp_min_size: Without blocks: number of parameters from which a module becomes a block of its own.
            fsdp_timeout: Seconds that a process waits for the others before it raises an error.
            fused_optimizer: Use fused kernels in torch's optimizers, unless you have chosen an implementation.
            gpus: Deprecated: number of GPUs, or the indices of the first ones; 0 is off.
            grad_norm_clipped: Measure again after clipping, in a second pass.
            grad_norm_key: Format of the metrics' names; for the total, the parameter's name is 'total'.
            grad_norm_per_parameter: Log each parameter's norm in addition to the total.
            gradient_clip_algorithm: What to clip: the total norm, each value, or each unit's norm relative to that of its weights.
            gradient_clip_eps: Adaptive clipping: lower bound for the norm of a unit's weights.
            gradient_clip_val: Maximum total norm, absolute value, or ratio of norms of the gradients; None and 0 are off.
            horovod_compression: Compression of the gradients that are sent: none, or float16, which halves their size.
            horovod_scale_lr: Multiply each learning rate, and what its schedule goes by, with the number of processes.
            limit_predict_batches: Read so many batches of each prediction loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            limit_test_batches: Read so many batches of each test loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            limit_train_batches: Read so many batches of each training loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            limit_val_batches: Read so many batches of each validation loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all.
            log_device_stats: Steps between two measurements, or any other rhythm; None is off. They go into the rows of log_every_n_steps.
            log_every_n_steps: Steps between two rows, or any other rhythm ('10 s', '1 epoch'); None and 0 log no steps.
            log_lr: Log the learning rates at each step or each epoch.
            log_outputs: Log what steps return under 'log' and 'progress_bar'; None: if the first output of a stage has one of them.
            logger: the plugins of this kind, by name or as objects; False for none.
            max_epochs: Maximum number of epochs; -1 is unlimited.
            max_steps: Maximum number of optimizer steps; -1 is unlimited.
            max_time: Maximum training time: seconds, '15 min', 'DD:HH:MM:SS', a timedelta, or its arguments in a mapping.
            min_epochs: Minimum number of epochs; requests to stop wait until then.
            min_steps: Minimum number of optimizer steps; requests to stop wait until then.
            monitor: Metric that ranks checkpoints; a checkpoint is saved whenever it improves.
            monitor_mode: Whether a lower ('min') or higher ('max') value of the monitored metric is better.
            monitor_strict: Raise an error if the monitored metric is never logged, instead of warning once.
            nonfinite: What to do if a value is NaN or infinite; None is off.
            nonfinite_async: What to do if gradients are NaN or infinite, without waiting for the device; None is off.
            nonfinite_async_every: Number of windows between two reads of the event count.
            nonfinite_async_limit: Stop training after this many events in consecutive windows.
            nonfinite_keep_every: Rewind: number of steps between two copies of the good state.
            nonfinite_limit: Stop training after this many events with no clean step between them.
            nonfinite_watch: What to check: any of 'loss', 'grad' and 'param'.
            num_nodes: Number of machines to train on, each started by a launcher.
            num_sanity_val_steps: Number of batches of each validation loader to run as a check before training; -1 is all, 0 is none.
            on_interrupt_raise: Raise KeyboardInterrupt after everything is closed, instead of returning a result.
            on_save_error: What to do if a save fails: end the run, or warn and tolerate three failures in a row.
            optimizer_frequencies: For how many windows in turn each optimizer steps, e.g. [5, 1]; None: as configure_optimizers says by 'frequency', and if it says nothing, all of them step in each.
            overfit_batches: Use only this number (int) or fraction (float) of the training and validation batches; 0 is off.
            pin_memory: Read DataLoaders with pin_memory=True if the device is a GPU.
            precision: Floating-point type: 32, 64, 'bf16-mixed', '16-mixed' (also 16), 'bf16-true' or '16-true'.
            precision_growth_interval: 16-mixed: number of windows without overflow after which the scale doubles.
            precision_init_scale: 16-mixed: initial loss scale.
            print_nan_grads: Gone; the error says what to write.
            process_position: Lines to leave free above the bar.
            profiler: True or 'simple', 'advanced', 'pytorch', a profiler, or a function; None is off.
            progress_interval: Seconds between two updates; by default 0.2 for a bar and 10 for lines.
            read_ahead: Read one batch ahead of loaders without len(), so that the last batch of an epoch is known before it is trained on.
            reload_dataloaders_every_n_epochs: Number of epochs between two reloads of the loaders; True reloads every epoch, 0 and False never.
            requeue_signal: Signal that SLURM sends before the job's time is up.
            resume: Go on from a checkpoint: its path, a folder of them, or 'auto' for the newest of this experiment, if there is one; given to an evaluation, whose weights to take: 'best' as well.
            resume_strict: Refuse to resume if plugins or the environment differ, instead of warning.
            run_name: Name of the experiment; None uses the name of the module's class.
            run_version: Name of the run; if it exists already, the run continues in it. By default a new version_N.
            running_loss_steps: Number of steps to average over.
            save_every: How often to save: a number of steps, '2 epochs', '500 batches', '15 min'; None saves only at the end.
            save_last: Number of newest checkpoints to keep, at least 1.
            save_on_exception: Save a checkpoint when the run fails with an error; resuming from it is not exact.
            save_top_k: Number of best checkpoints, by the monitored metric, to keep; -1 keeps all.
            save_weights_only: Save only the module's weights.
            seed: Seed of all random number generators, from 0 to 2**32 - 1; None does not seed.
            skip_together: With several processes, skip a batch on all of them if one has no loss for it; False raises an error.
            split_on_oom: Split batches into pieces when memory runs out, instead of failing.
            spmd: the plugins of this kind, by name or as objects; False for none.
            strategy: How several devices train together: the name of a strategy; 'auto' is ddp where a launcher has started several processes or devices is above 1; False is each process by itself.
            swa_anneal: How the rate is annealed: 'cos' or 'linear'.
            swa_anneal_epochs: Number of epochs over which the rate is annealed to the target; 0 is at once.
            swa_lr: Target learning rate while averaging; None leaves it unchanged.
            swa_start: Epoch from which weights are averaged, counted from 0; or a fraction of the training (0.75).
            swa_update_bn: Recompute the statistics of batch normalization at the end.
            tbptt_accumulate: Accumulate the gradient over the pieces of a batch and step once, instead of after each piece.
            tbptt_time_dim: The time dimension of all tensors of a batch; or of each by its path, {'inputs.text': 1, 'label': None}, None for what is in every piece, 1 for what is not named.
            tensorboard_flush_seconds: Maximum seconds until a row is flushed to disk.
            terminate_on_nan: Raise an error if a loss, gradient or parameter is NaN or infinite.
            terminate_on_nan_checks: What to check: any of 'loss', 'grad' and 'param'.
            throughput_window: Number of batches to average over.
            toggle_optimizers: With several optimizers, compute gradients only for the parameters of the current optimizer.
            tpu_cores: Deprecated: number of TPU cores, or a list with the index of one; 0 is off.
            trace: Trace the fit: True, or the path of the trace file; False is off.
            track_grad_norm: The p of the norm, any number above 0 or 'inf'; -1 is off.
            train_dataloaders: Training data; the same as the second argument of fit.
            truncated_bptt_steps: Split batches of sequences into pieces of this many time steps; None is off.
            use_distributed_sampler: With several processes, let each read its own part of the data; set False if your samplers do this already.
            val_check_interval: Validate every so many batches of an epoch (int) or each such fraction of it (float, 1.0 is at its end); or in any other rhythm: '500 steps', '10 min', a timedelta.
            val_dataloaders: Validation data; the same as the third argument of fit.
            validation: the plugins of this kind, by name or as objects; False for none.
            weights_save_path: Gone; the error says what to write.
            weights_summary: Depth of the summary: 'top' is 1, 'full' is everything; None and 0 print nothing.
            xla_shapes: Warn after this many batches, beyond the first steps, had new shapes that XLA had to compile for.
            xla_spmd_shard_parameters: Keep of each parameter (and of what its optimizer remembers) only a part on each device, where its first dimension can be divided.
            options: options of plugins of other distributions.
        """
