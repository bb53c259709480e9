"""Ray Train and Spark's TorchDistributor start a training function that is none the wiser."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from lightloop.testing.ranks import run_ranks, values_of
from tests.launched import train

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    first, second = values_of(run_ranks(train, 2, {"folder": str(tmp_path_factory.mktemp("expected"))}))
    assert first == second
    assert (first["processes"], first["steps"]) == (2, 15)
    return first


@pytest.fixture(scope="module")
def ray():
    os.environ.update(RAY_TRAIN_V2_ENABLED="1", RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}},
    )
    yield ray
    ray.shutdown()


@pytest.mark.parametrize("kill", [False, True])
def test_ray_train(ray, tmp_path, expected, kill):
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    folder = tmp_path / "checkpoints"
    folder.mkdir()
    config = {"folder": str(folder), **({"kill": str(tmp_path / "killed")} if kill else {})}
    TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert json.loads((folder / "outcome.json").read_text()) == expected
    assert (tmp_path / "killed").exists() == kill


@pytest.fixture(scope="module")
def spark():
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("Spark needs Java, which is not installed")
    os.environ.update(PYSPARK_PYTHON=sys.executable, OMP_NUM_THREADS="1")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.mark.parametrize("local", [True, False], ids=["on the driver", "on executors"])
def test_spark(spark, tmp_path, expected, local):
    from pyspark.ml.torch.distributor import TorchDistributor

    distributor = TorchDistributor(num_processes=2, local_mode=local, use_gpu=False)
    assert distributor.run(train, {"folder": str(tmp_path)}) == expected
