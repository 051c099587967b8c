"""Checkpoints: to the bit, never half written, earlier ones never lost."""

from __future__ import annotations

import errno
import json
import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp

from helpers import tiny_model
from learning.batches import (
    critic_weights,
    make_groups,
    make_learner,
    make_pair,
    settings,
    update,
    update_critic,
    weights,
)
from postrl.config import GRPOConfig
from postrl.errors import PostrlError
from postrl.learning.checkpoint import checkpoints, load_checkpoint, load_policy, read_state, save_checkpoint
from postrl.learning.loading import with_lora

ADAM = {"optim": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1, "lr_scheduler_type": "linear"}


def learner(seed: int = 0, *, rank: int = 0, dtype: str = "float32", **options):
    """`seed` is that of the weights; LoRA's dropout draws from torch's global stream in every forward pass."""
    model = tiny_model(seed=seed)
    if rank:
        model = with_lora(model, GRPOConfig(lora_rank=rank, lora_dropout=0.5))
    return make_learner(model, settings(**{**ADAM, **options}), dtype=dtype)


@pytest.mark.parametrize("options", [{}, {"optim": "sgd"}, {"rank": 2}], ids=["adamw", "sgd", "lora"])
def test_a_continued_learner_makes_the_same_steps_to_the_bit(tmp_path, options):
    torch.manual_seed(0)
    straight = learner(**options)
    update(straight, make_groups())
    save_checkpoint(tmp_path, 1, straight, {"version": 1, "source": {"taken": {"": 7}}}, keep=2)
    reports = [update(straight, make_groups(seed=seed)) for seed in (1, 2)]

    torch.manual_seed(1)
    resumed = learner(**options)
    state = load_checkpoint(tmp_path / "step_000001", resumed)
    assert state == {"version": 1, "source": {"taken": {"": 7}}, "step": 1, "updates": 1}
    again = [update(resumed, make_groups(seed=seed)) for seed in (1, 2)]
    assert [(r.grad_norms, r.lr) for r in again] == [(r.grad_norms, r.lr) for r in reports]
    expected = weights(straight)
    assert {name: torch.equal(tensor, expected[name]) for name, tensor in weights(resumed).items()} == dict.fromkeys(
        expected, True
    )


def pair(*, rank: int = 0, **options):
    """A learner with a critic."""
    config = settings(**{**ADAM, "algorithm": "ppo", "minibatches": 2, "critic_learning_rate": 1e-2, **options})
    model = tiny_model()
    if rank:
        model = with_lora(model, GRPOConfig(lora_rank=rank, lora_dropout=0.5))
    return make_pair(model, config)


@pytest.mark.parametrize("options", [{}, {"rank": 2}], ids=["full", "lora"])
def test_a_continued_critic_makes_the_same_steps_to_the_bit(tmp_path, options):
    def phase(learner, seed):
        reports = [update_critic(learner, make_groups(seed=seed)), update(learner, make_groups(seed=seed))]
        return [(report.grad_norms, report.lr) for report in reports]

    torch.manual_seed(0)
    straight = pair(**options)
    update_critic(straight, make_groups())  # as in the warm-up of the critic
    phase(straight, 1)
    save_checkpoint(tmp_path, 2, straight, {}, keep=2)
    expected = [phase(straight, seed) for seed in (2, 3)]

    torch.manual_seed(1)  # LoRA's dropout draws from it, too
    resumed = pair(**options)
    state = load_checkpoint(tmp_path / "step_000002", resumed)
    assert state == {"step": 2, "updates": 2, "critic_updates": 4}
    assert (resumed.updates, resumed.critic.updates) == (2, 4)
    assert [phase(resumed, seed) for seed in (2, 3)] == expected
    for now, then in ((weights(resumed), weights(straight)), (critic_weights(resumed), critic_weights(straight))):
        assert {name: torch.equal(tensor, then[name]) for name, tensor in now.items()} == dict.fromkeys(then, True)


def test_a_reference_that_follows_the_policy_is_continued_where_it_was(tmp_path):
    def with_reference():
        config = settings(beta=0.1, sync_ref_model=True)
        return make_learner(tiny_model(), config, reference=tiny_model())

    straight = with_reference()
    update(straight, make_groups(seed=0))
    straight.refresh_reference(0.6)
    save_checkpoint(tmp_path, 1, straight, {}, keep=None)
    resumed = with_reference()
    load_checkpoint(tmp_path / "step_000001", resumed)
    initial, moved = tiny_model().state_dict(), straight.policy.model.state_dict()
    for name, tensor in resumed.reference.model.state_dict().items():
        assert torch.equal(tensor, straight.reference.model.state_dict()[name])
        torch.testing.assert_close(tensor, 0.4 * initial[name] + 0.6 * moved[name])
    assert any(not torch.equal(initial[name], moved[name]) for name in initial)
    assert not any(p.requires_grad for p in resumed.reference.parameters())


def test_the_kernel_of_the_optimizer_is_that_of_the_machine_and_not_of_the_checkpoint(tmp_path):
    """GPUs take the fused one."""
    saving, resumed = learner(), learner()
    saving.optimizer.param_groups[0]["fused"] = True
    update(saving, make_groups())
    save_checkpoint(tmp_path, 1, saving, {}, keep=1)
    load_checkpoint(tmp_path / "step_000001", resumed)
    assert resumed.optimizer.param_groups[0]["fused"] is None
    assert update(resumed, make_groups()).skipped == 0


def test_saving_changes_nothing_in_the_learner(tmp_path):
    saving, other = learner(), learner()
    for step in (1, 2, 3):
        for one in (saving, other):
            update(one, make_groups(seed=step))
        save_checkpoint(tmp_path, step, saving, {}, keep=1)
    expected = weights(other)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(saving).items())


def test_a_checkpoint_before_the_first_step_changes_nothing_either(tmp_path):
    """Every update of the first steps was skipped, so the optimizer has no state yet."""
    saving, other = learner(), learner()
    save_checkpoint(tmp_path, 1, saving, {}, keep=1)
    for one in (saving, other):
        update(one, make_groups())
    expected = weights(other)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(saving).items())


def test_only_adapters_are_in_the_checkpoint_of_an_adapter(tmp_path):
    save_checkpoint(tmp_path, 1, learner(rank=2), {}, keep=1)
    names = dcp.FileSystemReader(str(tmp_path / "step_000001" / "learner")).read_metadata().state_dict_metadata
    assert [name for name in names if name.startswith("model.") and "lora_" not in name] == []


def test_the_oldest_beyond_the_limit_go(tmp_path):
    one = learner()
    for step in (2, 4, 999_998, 1_000_000):
        save_checkpoint(tmp_path, step, one, {}, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_999998", "step_1000000"]
    save_checkpoint(tmp_path, 1_000_002, one, {}, keep=None)
    assert len(checkpoints(tmp_path)) == 3
    assert read_state(tmp_path / "step_1000002")["step"] == 1_000_002


# -- a disk that is full -----------------------------------------------------------------------------------------------


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["tensors", "state", "flush"])
def test_a_full_disk_is_one_error_and_costs_no_earlier_checkpoint(tmp_path, monkeypatch, where):
    one = learner()
    for step in (1, 2):
        save_checkpoint(tmp_path, step, one, {}, keep=2)
    with monkeypatch.context() as patch:
        if where == "tensors":
            patch.setattr("torch.distributed.checkpoint.filesystem._write_item", no_space)
        elif where == "state":
            patch.setattr("pathlib.Path.write_text", no_space)
        else:
            patch.setattr("os.fsync", no_space)
        with pytest.raises(
            PostrlError, match=r"checkpoint 3 could not be written to .*No space left on device"
        ) as caught:
            save_checkpoint(tmp_path, 3, one, {}, keep=2)
    assert "--resume" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002"]
    load_checkpoint(tmp_path / "step_000002", learner())
    save_checkpoint(tmp_path, 3, one, {}, keep=2)  # there is room again
    assert [path.name for path in checkpoints(tmp_path)] == ["step_000002", "step_000003"]


def test_a_place_that_is_no_folder_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PostrlError, match="checkpoint 1 could not be written"):
        save_checkpoint(tmp_path / "file", 1, learner(), {}, keep=2)


def test_what_a_killed_save_left_is_no_checkpoint_and_goes_with_the_next(tmp_path):
    (tmp_path / ".writing-step_000001" / "learner").mkdir(parents=True)
    (tmp_path / "step_000002").mkdir()  # renamed by hand, without a state
    assert checkpoints(tmp_path) == []
    save_checkpoint(tmp_path, 3, learner(), {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]


# -- a checkpoint that does not fit ------------------------------------------------------------------------------------


def damage(path):
    for file in (path / "learner").glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:100])


def lose_state(path):
    (path / "state.json").write_text("{")


@pytest.mark.parametrize("break_it", [damage, lose_state])
def test_a_damaged_checkpoint_is_one_error(tmp_path, break_it):
    save_checkpoint(tmp_path, 1, learner(), {}, keep=2)
    break_it(tmp_path / "step_000001")
    with pytest.raises(PostrlError, match="step_000001 cannot be read into this model") as caught:
        load_checkpoint(tmp_path / "step_000001", learner())
    assert "delete this checkpoint to use the one before" in caught.value.hint


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def put_into_the_table(learner, code):
    (learner / ".metadata").write_bytes(pickle.dumps(code))


def put_beside_the_table(learner, code):
    table = pickle.loads((learner / ".metadata").read_bytes())
    table.planner_data = {**table.planner_data, "more": code}
    (learner / ".metadata").write_bytes(pickle.dumps(table))


def put_under(wanted):
    """The code in place of an entry whose name begins so: the table is right, and leads to it."""

    def put(learner, code):
        table = pickle.loads((learner / ".metadata").read_bytes())
        torch.save(code, learner / "more.distcp")
        for index, place in table.storage_data.items():
            if index.fqn.startswith(wanted):
                place.relative_path, place.offset = "more.distcp", 0
                place.length = (learner / "more.distcp").stat().st_size
        (learner / ".metadata").write_bytes(pickle.dumps(table))

    return put


@pytest.mark.parametrize(
    "put", [put_into_the_table, put_beside_the_table, put_under("optim.param_groups"), put_under("random_0")]
)
def test_a_checkpoint_that_could_run_code_runs_none_and_is_refused(tmp_path, put):
    path = save_checkpoint(tmp_path, 1, learner(), {}, keep=2)
    load_checkpoint(path, learner())
    put(path / "learner", Code(tmp_path / "ran"))
    with pytest.raises(PostrlError, match=r"is refused: it names posix\.mkdir, which could run code") as caught:
        load_checkpoint(path, learner())
    assert "ask where it comes from" in caught.value.hint
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("put", [put_into_the_table, put_under("model.")])
def test_a_model_is_not_made_of_a_checkpoint_that_could_run_code(tmp_path, put):
    path = save_checkpoint(tmp_path, 1, learner(), {}, keep=2)
    put(path / "learner", Code(tmp_path / "ran"))
    with pytest.raises(PostrlError, match=r"is refused: it names posix\.mkdir"):
        load_policy(path, tiny_model())
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_model_is_one_error(tmp_path):
    save_checkpoint(tmp_path, 1, learner(), {}, keep=2)
    for other in (learner(rank=2), make_learner(tiny_model(tie=False), settings(**ADAM))):
        with pytest.raises(PostrlError, match=r"cannot be read into this model: .*(lora_A|lm_head)"):
            load_checkpoint(tmp_path / "step_000001", other)


def test_a_critic_and_a_checkpoint_without_one_do_not_fit(tmp_path):
    save_checkpoint(tmp_path, 1, learner(), {}, keep=None)
    save_checkpoint(tmp_path, 2, pair(), {}, keep=None)
    with pytest.raises(PostrlError, match="step_000001 has no critic, and this run trains one") as caught:
        load_checkpoint(tmp_path / "step_000001", pair())
    assert "algorithm" in caught.value.hint
    with pytest.raises(PostrlError, match="step_000002 has a critic, and this run trains none"):
        load_checkpoint(tmp_path / "step_000002", learner())


def test_the_state_is_plain_json(tmp_path):
    path = save_checkpoint(tmp_path, 5, learner(), {"version": 4}, keep=2)
    assert json.loads((path / "state.json").read_text()) == {"version": 4, "step": 5, "updates": 0}
