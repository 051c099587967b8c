"""Algorithms of the user's own: in a file, registered by a script, and the example of the documentation."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from helpers import tiny_model_dir
from learning.batches import make_groups
from postrl import GRPOConfig, GRPOTrainer
from postrl.algorithms import PRESETS, Preset, register
from postrl.algorithms.objective import PolicyObjective
from postrl.algorithms.parts import LOSSES
from postrl.algorithms.resolve import resolve
from postrl.cli.options import build_config
from postrl.config.algorithm_file import check_preset, load_preset
from postrl.errors import UsageError
from postrl.learning.batch import make_batch
from postrl.rollout.store import write_rollouts
from postrl.session import resolve_algorithm

DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"
OTHER = "from postrl.algorithms import Preset\nMyAlgo = Preset('mine', 'group', 'clip')\nnumber = 3\n"


def example() -> str:
    """The code block of the documentation, as a user would copy it."""
    lines = DOCS.read_text().splitlines()
    start = lines.index("    # my_algo.py")
    block = lines[start : next(i for i in range(start, len(lines)) if lines[i] and not lines[i].startswith("    "))]
    return "\n".join(line.removeprefix("    ") for line in block)


def replay(folder: Path, algorithm: str, **settings) -> dict[str, float | None]:
    """Two steps on stored rollouts with a tiny model."""
    tiny_model_dir(folder / "tiny")
    for step in (1, 2):
        write_rollouts(folder / "stored" / "rollouts", step, "train", make_groups(seed=step))
    config = GRPOConfig(
        algorithm=algorithm, output_dir=str(folder / "run"), replay=str(folder / "stored"), max_completion_length=16,
        prompts_per_step=4, num_generations=4, learning_rate=1e-3, **settings,
    )  # fmt: skip
    with closing(GRPOTrainer(model=str(folder / "tiny"), args=config)) as trainer:
        return trainer.train()


def test_the_example_of_the_documentation_trains_from_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_algo.py").write_text(example())
    last = replay(tmp_path, "my_algo.py:MyAlgo")
    assert last["step"] == 2 and last["policy/grad_norm"] > 0
    assert 0 < last["group/positive_frac"] < 1


def test_the_example_is_as_short_as_the_documentation_says():
    assert len([line for line in example().splitlines() if line.strip()]) <= 20


def test_a_registered_algorithm_has_a_name_and_brings_its_settings(tmp_path):
    preset = Preset("house_style", "rloo", "cispo", settings={"epsilon": 0.1, "num_iterations": 2})
    try:
        register(preset)
        config = GRPOConfig(algorithm="house_style")
        assert (config.epsilon, config.num_iterations) == (0.1, 2)
        assert replay(tmp_path, "house_style")["policy/grad_norm"] > 0
        with pytest.raises(ValueError, match="there is an algorithm 'house_style' already"):
            register(Preset("house_style", "group", "clip"))
    finally:
        del PRESETS["house_style"]


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        (None, "MyAlgo", "there is no file"),
        (OTHER, "YourAlgo", "does not define YourAlgo"),
        ("MyAlgo = (", "MyAlgo", "is not Python"),
    ],
)
def test_the_launcher_says_what_is_wrong_with_the_file(tmp_path, content, name, says):
    path = tmp_path / "algo.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=says) as error:
        check_preset(f"{path}:{name}")
    assert "Preset" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        (OTHER, "number", "holds a int there"),
        ("import nowhere_at_all\nMyAlgo = 1", "MyAlgo", "cannot be run: ModuleNotFound"),
    ],
)
def test_what_shows_when_the_file_runs_is_explained(tmp_path, content, name, says):
    path = tmp_path / "algo.py"
    path.write_text(content)
    check_preset(f"{path}:{name}")
    with pytest.raises(UsageError, match=says):
        load_preset(f"{path}:{name}")


def test_the_rollout_worker_knows_from_the_file_that_greedy_completions_are_wanted(tmp_path):
    path = tmp_path / "algo.py"
    path.write_text(OTHER + "Greedy = Preset('greedy', 'remax', 'reinforce', needs=frozenset({'greedy'}))\n")
    assert GRPOConfig(algorithm=f"{path}:Greedy").needs_greedy
    assert not GRPOConfig(algorithm=f"{path}:MyAlgo").needs_greedy
    assert GRPOConfig(algorithm="remax").needs_greedy and not GRPOConfig().needs_greedy


def test_groups_of_one_are_refused_where_an_algorithm_in_a_file_compares_groups(tmp_path):
    path = tmp_path / "algo.py"
    path.write_text(OTHER + "Single = Preset('single', 'gae', 'clip', needs=frozenset({'values'}))\n")
    with pytest.raises(UsageError, match="a group of one has no baseline"):
        resolve_algorithm(GRPOConfig(algorithm=f"{path}:MyAlgo", num_generations=1))
    resolve_algorithm(GRPOConfig(algorithm=f"{path}:Single", num_generations=1))


def test_an_algorithm_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "algorithm_neighbour.py").write_text("LOSS = 'cispo'\n")
    (tmp_path / "algo.py").write_text(
        "from algorithm_neighbour import LOSS\nfrom postrl.algorithms import Preset\nX = Preset('x', 'group', LOSS)\n"
    )
    assert load_preset(f"{tmp_path / 'algo.py'}:X").loss == "cispo"


def test_what_a_registered_algorithm_reads_does_not_take_it_from_the_others():
    try:
        register(Preset("greedy_reader", "group", "clip", reads=("epsilon", "beta")))
        assert GRPOConfig(beta=0.1).beta == 0.1
    finally:
        del PRESETS["greedy_reader"]


def test_settings_in_a_file_come_too_late_and_are_refused(tmp_path):
    path = tmp_path / "algo.py"
    path.write_text("from postrl.algorithms import Preset\nX = Preset('x', 'group', 'clip', settings={'beta': 0.3})\n")
    with pytest.raises(UsageError, match=r"settings of its own \(beta\), which come too late"):
        load_preset(f"{path}:X")


def test_the_defaults_of_the_command_stand_below_those_of_its_config_file(tmp_path):
    (tmp_path / "run.yaml").write_text("prompts_per_step: 4\nmodel: m\n")
    given = {"algorithm": "algo.py:X"}
    config = build_config(GRPOConfig, given, tmp_path / "run.yaml", algorithm="dapo")
    assert (config.prompts_per_step, config.num_generations, config.epsilon_high) == (4, 16, 0.28)
    assert build_config(GRPOConfig, {}, tmp_path / "run.yaml", algorithm="dapo").algorithm == "dapo"


def test_rows_without_advantage_are_passed_through_a_loss_of_ones_own():
    batch = make_batch(make_groups(2, 4), 0, torch.device("cpu"))
    batch.advantages = torch.zeros(8)
    assert PolicyObjective(resolve("grpo")).idle_rows(batch) == list(range(8))
    assert PolicyObjective(resolve(Preset("mine", "group", LOSSES["clip"]))).idle_rows(batch) == []
    batch.mask_BT[3] = False
    assert PolicyObjective(resolve(Preset("mine", "group", LOSSES["clip"]))).idle_rows(batch) == [3], (
        "nothing of it is trained on"
    )


def test_a_name_that_is_no_file_is_looked_up_in_the_table():
    check_preset("grpo")
    assert load_preset("grpo") == "grpo"
    with pytest.raises(UsageError, match="algorithm is 'grop'") as error:
        GRPOConfig(algorithm="grop")
    assert error.value.hint == "did you mean grpo?"
