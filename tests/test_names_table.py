"""The page of names is complete, and what it says exists."""

import ast
import re
from pathlib import Path

import pytest

from lightloop import Module, Trainer
from lightloop.host.keywords import known_options
from lightloop.toolkit import discover

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "names.md"
NAMES = re.findall(
    r"\w+",
    """
accumulate_grad_batches accumulation_scheduler min_epochs max_epochs min_steps max_steps max_nb_epochs min_nb_epochs
early_stop_callback EarlyStopping monitor min_delta patience verbose mode strict check_finite stopping_threshold
divergence_threshold check_on_train_epoch_end stopped_epoch wait_count best_score should_stop gradient_clip_val
gradient_clip_algorithm track_grad_norm limit_train_batches limit_val_batches limit_test_batches train_percent_check
val_percent_check test_percent_check overfit_batches overfit_pct transfer_batch_to_gpu transfer_batch_to_tpu
transfer_batch_to_device truncated_bptt_steps tbptt_split_batch hiddens terminate_on_nan print_nan_grads
detect_anomaly val_check_interval check_val_every_n_epoch should_check_val is_last_batch val_check_batch
disable_validation row_log_interval log_save_interval save_loggers_in_training_loop save_train_loop_metrics_to_loggers
log_every_n_steps fast_dev_run interrupted run_training_teardown on_keyboard_interrupt reload_dataloaders_every_epoch
reload_dataloaders_every_n_epochs num_sanity_val_steps nb_sanity_val_steps precision use_amp amp_level profiler use_dp
use_ddp use_ddp2 use_horovod use_tpu single_gpu on_gpu distributed_backend optimizers optimizer_frequencies
_get_optimizers_iterable optimizer_closure call_optimizer_step run_batch_backward_pass training_forward process_output
loss log progress_bar training_step_end training_epoch_end run_training_epoch_end update_learning_rates
update_train_loop_lr_schedulers running_loss progress_bar_dict add_progress_bar_metrics batch_loss_value is_overridden
is_function_implemented has_arg get_model _with_is_last batch_idx callback_metrics callbacks data_parallel_device_ids
global_rank tpu_id interactive_ddp_procs global_step logger lr_schedulers lr_scheduler_configs model
num_training_batches on_batch_start on_batch_end on_epoch_start on_epoch_end on_train_start on_train_end
on_validation_end reduce_lr_on_plateau_scheduler testing total_batch_idx train_dataloader train run_training_epoch
run_training_batch run_on_epoch_start_hook run_on_epoch_end_hook prepare_train_loop_dataloader reset_train_dataloader
reset_val_dataloader run_evaluation check_checkpoint_callback increment_accumulated_grad_global_step log_metrics
clip_gradients detect_nan_tensors sync_horovod gradient_clip add_row_log_interval nb_gpu_nodes num_nodes
default_save_path default_root_dir show_progress_bar progress_bar_refresh_rate enable_progress_bar batch_nb
training_tqdm_dict enable_early_stop checkpoint_callback resume_from_checkpoint weights_save_path weights_summary
log_gpu_memory process_position on_pre_performance_check on_post_performance_check optimizer_step on_before_zero_grad
backward on_after_backward on_before_optimizer_step configure_apex configure_ddp init_ddp_connection
DistributedSampler validation_end validation_epoch_end dataloader_idx on_exception on_sanity_check_start prepare_data
get_progress_bar_dict configure_gradient_clipping estimated_stepping_batches logged_metrics progress_bar_metrics
""",
)
"""What the documentation that is carried over has names for."""
# The examples of its pages, with what each says is the default.
EXAMPLES = [
    {"accumulate_grad_batches": 1},
    {"min_epochs": 1, "max_epochs": 1000},
    {"early_stop_callback": None},
    {"gradient_clip_val": 0},
    {"gradient_clip_val": 0.5},
    {"track_grad_norm": -1},
    {"track_grad_norm": 2},
    {"limit_train_batches": 1.0},
    {"limit_train_batches": 0.1},
    {"limit_train_batches": 10},
    {"truncated_bptt_steps": None},
    {"truncated_bptt_steps": 2},
    {"terminate_on_nan": False},
    {"terminate_on_nan": True},
]


def rows():
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] not in ("name", "---"):
            yield cells


def to_come(here):
    return here.startswith("not yet")


def names_of_tests(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def spans(text):
    return re.findall(r"`([^`]+)`", text)


def test_every_test_that_is_named_exists():
    named = {span for _, _, proof in rows() for span in spans(proof)}
    missing = []
    for reference in sorted(named):
        file, _, test = reference.partition("::")
        path = TESTS / file
        if not path.exists() or test not in names_of_tests(path):
            missing.append(reference)
    assert missing == []


def test_a_name_without_a_test_says_what_became_of_it():
    bare = [
        name for name, here, proof in rows() if not proof and not here.startswith("dropped: ") and not to_come(here)
    ]
    assert bare == []


def test_every_option_that_is_named_exists():
    for found in discover().values():
        assert found.left_out_by is None, f"{found.name} is left out by {found.left_out_by}"
    known = known_options(discover())
    kinds = {kind for found in discover().values() if found.plugin for kind in found.plugin.names()}
    named = {option for _, here, _ in rows() for option in re.findall(r"Trainer\((\w+)=", here) if not to_come(here)}
    assert sorted(named - {*known, *kinds}) == []


def test_every_attribute_of_the_trainer_that_is_named_exists():
    trainer = Trainer()
    named = {name for _, here, _ in rows() for span in spans(here) for name in re.findall(r"^trainer\.(\w+)", span)}
    assert sorted(name for name in named if not hasattr(trainer, name)) == []
    assert "trainer" in vars(Module)


def test_every_option_of_our_own_plugins_is_on_the_page():
    own = {name: found.plugin for name, found in discover().items() if found.distribution == "lightloop"}
    page = PAGE.read_text()
    known = known_options(discover())
    missing = [
        f"{keyword} ({option.plugin.name})"
        for keyword, option in known.items()
        if option.plugin in own.values()
        and f"Trainer({keyword}=" not in page
        and not (keyword != option.keyword and f"`{keyword}`" in page)
    ]
    assert missing == [], "give each of these a row in docs/names.md"


def test_every_name_that_is_carried_over_is_on_the_page():
    named = {span for name, _, _ in rows() for span in spans(name)}
    assert [name for name in NAMES if name not in named] == []


@pytest.mark.parametrize("options", EXAMPLES, ids=str)
def test_the_examples_of_the_old_pages_work(options):
    assert isinstance(Trainer(**options), Trainer)
