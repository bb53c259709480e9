"""The contract of accelerators, devices and strategies alike, as tests that anybody's can inherit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch

from lightloop.testing.accelerator_runs import BATCHES, SIZE, Run, interrupted, train
from lightloop.testing.ranks import Outcome, values_of
from lightloop.testing.step_gradients import GradientContract


class AcceleratorContract(GradientContract):
    """Tests that every accelerator passes. Subclass it as ``TestMine``, and say how a Trainer chooses it.

    The reference of each row is one process on the CPU that trains on the same global batches; that of
    :class:`GradientContract`, which it includes, is a loop by hand.
    """

    exact_resume: ClassVar[bool] = True
    """Whether a resumed run ends bit-equal to one that was not stopped; else, within the tolerance."""
    reduces: ClassVar[bool] = True
    """Whether gradients are reduced by collectives of torch.distributed, which can be counted."""
    patience: ClassVar[float] = 60.0
    """How many seconds a rank waits for the others, as ``options`` say; what ends sooner has not waited."""
    first_error: ClassVar[bool] = True
    """Whether ranks that end because of another one say what its error was."""

    def run(self, case: str = "plain", **more: Any) -> list[Outcome]:
        """Train on each rank."""
        return self.launch(train, Run(self.options, more, SIZE, self.ranks, case, ("accumulate", "duration")))

    def alone(self, **more: Any) -> dict[str, Any]:
        """Train in this process alone, on the CPU, with batches as large as those of all ranks together."""
        return train(Run({"strategy": False}, more, SIZE * self.ranks, self.ranks))

    def close(self, found: Any, wanted: Any, exact: bool = False) -> None:
        """Compare numbers, or weights by name."""
        torch.testing.assert_close(found, wanted, rtol=0, atol=0 if exact else self.tolerance)

    def test_losses_and_weights_are_those_of_one_process(self) -> None:
        ranks, alone = values_of(self.run(max_epochs=2)), self.alone(max_epochs=2)
        for each in ranks:
            self.close(each["weights"], ranks[0]["weights"], exact=True)
            self.close(each["weights"], alone["weights"])
        losses = torch.tensor([each["losses"] for each in ranks]).mean(0)
        self.close(losses, torch.tensor(alone["losses"]))

    def test_held_steps_do_not_reduce(self) -> None:
        ranks, alone = values_of(self.run(accumulate_grad_batches=4)), self.alone(accumulate_grad_batches=4)
        for each in ranks:
            assert each["status"] == ("finished", None, 3)
            self.close(each["weights"], alone["weights"])
            if self.reduces and self.ranks > 1:
                assert each["reduced"] == [False, False, False, True] * 2 + [False, True]

    def test_the_norm_is_that_of_the_whole_gradient_and_clips(self) -> None:
        limit = sorted(self.alone()["norms"])[BATCHES // 2]  # half of the steps are clipped
        ranks, alone = values_of(self.run(gradient_clip_val=limit)), self.alone(gradient_clip_val=limit)
        for each in ranks:
            self.close(torch.tensor(each["norms"]), torch.tensor(alone["norms"]))
            self.close(each["weights"], alone["weights"])

    def test_a_batch_changes_its_device_once(self) -> None:
        for each in values_of(self.run()):
            assert each["moved"] == [int(each["device"] != "cpu")] * BATCHES

    def test_evaluation_counts_each_sample_once(self) -> None:
        for each in values_of(self.run()):
            self.close(torch.tensor(each["val"]), torch.tensor(self.alone()["val"]))

    def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(self, tmp_path: Path) -> None:
        whole = values_of(self.run(max_epochs=2))
        run = Run(self.options, {"max_epochs": 2}, SIZE, self.ranks)
        for each, other in zip(values_of(self.launch(interrupted, run, str(tmp_path))), whole, strict=True):
            self.close(each["weights"], other["weights"], exact=self.exact_resume)

    def test_an_error_on_one_rank_ends_all_of_them(self) -> None:
        outcomes = self.run("raise")
        assert max(outcome.seconds for outcome in outcomes) < self.patience
        assert outcomes[-1].error is not None
        assert outcomes[-1].error.startswith("ValueError: rotten luck")
        for outcome in outcomes[:-1]:
            assert outcome.error is not None
            assert outcome.status not in (0, None)
            if self.first_error:
                assert f"rank {self.ranks - 1}: ValueError: rotten luck" in outcome.error, outcome.error

    def test_a_request_to_stop_on_one_rank_stops_all_of_them(self) -> None:
        for each in values_of(self.run("stop")):
            assert each["status"] == ("stopped", "had enough", 3)

    def test_no_loss_on_one_rank_is_an_error_on_all_or_skipped_by_all(self) -> None:
        if self.ranks == 1:
            assert values_of(self.run("none"))[0]["status"] == ("finished", None, BATCHES - 1)
            return
        outcomes = self.run("none")
        assert outcomes[-1].error is not None
        assert "each must train on each batch" in outcomes[-1].error
        assert all(outcome.error is not None and outcome.status not in (0, None) for outcome in outcomes)
        ranks = values_of(self.run("none", skip_together=True))
        for each in ranks:
            assert each["status"] == ("finished", None, BATCHES - 1)
            self.close(each["weights"], ranks[0]["weights"], exact=True)

    def test_ranks_with_other_numbers_of_batches_end_together(self) -> None:
        least = 5 if self.ranks == 1 else 4
        for case in ("uneven", "endless"):
            for each in values_of(self.run(case, accumulate_grad_batches=2)):
                assert each["status"] == ("finished", None, (least + 1) // 2)
                assert len(each["losses"]) == least
