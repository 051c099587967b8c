"""The names of TRL's trainer, before, during and after training: what they stand for here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postrl.config import GRPOConfig
from postrl.errors import PostrlError, UsageError
from postrl.learning.checkpoint import seed_everything
from postrl.learning.hub import push_model
from postrl.learning.loading import load_model, load_tokenizer, with_lora
from postrl.run.folder import RunFolder
from postrl.run.waiting import speaking
from postrl.scripts.accelerator import Processes
from postrl.scripts.callbacks import Callbacks, LearningRate
from postrl.scripts.card import model_card, write_card
from postrl.scripts.hooks import missing, refuse_hooks

if TYPE_CHECKING:
    from postrl.given import Given


class TrainerNames:
    """What scripts read and call on TRL's trainers. The trainer that has it also has args, given, callbacks, session."""

    args: GRPOConfig
    given: Given
    callbacks: Callbacks
    session: Any
    reporter: Any
    train_dataset: Any
    """The rows as the script gave them; None: the settings name them."""
    eval_dataset: Any
    reward_funcs: list[Any]
    """The reward functions as the script gave them."""
    accelerator = Processes()
    aux_loss_enabled = False
    """No load-balancing loss of mixtures of experts is added to the policy's."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ != "postrl.trainer":
            refuse_hooks(cls)

    def __getattr__(self, name: str) -> Any:
        raise missing(name, type(self).__name__)

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The model that is trained, with its adapter where it has one. Before the first step it is loaded for this."""
        if self.session is not None:
            return self.session.learner.policy.model
        if self.given.model is None and "reporter" in self.__dict__:
            folder = RunFolder(self.args.output_dir or "")
            raise UsageError(
                "the trainer was closed, and its model with it", hint=f"what was trained is in {folder.model}"
            )
        if not self.given.adapted:
            seed_everything(self.args.seed)
            peft_config, model = self.given.peft_config, self.given.model
            if model is None:
                model = load_model(self.args, self.args.model, peft_config=peft_config)
            self.given = replace(self.given, model=with_lora(model, self.args, peft_config), adapted=True)
        return self.given.model

    @property
    def ref_model(self) -> Any:
        """The copy of the initial model that the KL is measured against; None without one: an adapter is switched off for it."""
        return None if self.session is None else self.session.learner.reference

    @property
    def processing_class(self) -> Any:
        """The tokenizer."""
        if self.session is not None:
            return self.session.tokenizer
        if self.given.tokenizer is None:
            self.given = replace(self.given, tokenizer=load_tokenizer(self.args, self.args.model))
        return self.given.tokenizer

    tokenizer = processing_class

    @property
    def state(self) -> Any:
        """A transformers.TrainerState: global_step, max_steps, epoch, log_history, ... in the main process."""
        return self.callbacks.state

    @property
    def control(self) -> Any:
        return self.callbacks.control

    @property
    def optimizer(self) -> Any:
        """The policy's, while the trainer runs, else None."""
        return None if self.session is None else self.session.learner.optimizer

    @property
    def lr_scheduler(self) -> Any:
        """Tells the current rate (`get_last_lr`); None before the first step."""
        return None if self.optimizer is None else LearningRate(self.optimizer)

    @property
    def hub_model_id(self) -> str | None:
        return self.args.push_to_hub

    def is_world_process_zero(self) -> bool:
        return self.accelerator.is_main_process

    def is_local_process_zero(self) -> bool:
        return self.accelerator.is_local_main_process

    # -- callbacks and metrics ---------------------------------------------------------------------------------------

    def add_callback(self, callback: Any) -> None:
        """A transformers.TrainerCallback, or a class of them."""
        self.callbacks.add(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Take out this one, or the first of this class; returns it, or None."""
        return self.callbacks.pop(callback)

    def remove_callback(self, callback: Any) -> None:
        self.callbacks.pop(callback)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Give metrics of the script's own to callbacks, state.log_history and trackers."""
        if self.is_world_process_zero():
            (self.callbacks if self.session is None else self.reporter).log(logs)

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print metrics as a table; `split`: train, eval or test."""
        from transformers.trainer_pt_utils import log_metrics

        log_metrics(self, split, metrics)  # type: ignore[no-untyped-call]

    def metrics_format(self, metrics: dict[str, float]) -> dict[str, float]:
        from transformers.trainer_pt_utils import metrics_format

        return dict(metrics_format(metrics))

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write metrics to `<split>_results.json` in the run's folder, and with `combined` to all_results.json."""
        from transformers.trainer_pt_utils import save_metrics

        save_metrics(self, split, metrics, combined)  # type: ignore[no-untyped-call]

    def save_state(self) -> None:
        """Write the state to trainer_state.json in the run's folder."""
        from transformers.trainer_pt_utils import save_state

        save_state(self)  # type: ignore[no-untyped-call]

    # -- the model for others ----------------------------------------------------------------------------------------

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """Write README.md beside the trained model (RUN/model), or in the run's folder while there is none."""
        if self.is_world_process_zero():
            own = [tags] if isinstance(tags, str) else tags or ()
            folder = RunFolder(self.args.output_dir or "")
            folder.path.mkdir(parents=True, exist_ok=True)
            card = model_card(self.args, folder, name=model_name or "", dataset=dataset_name or "", tags=own)
            write_card(card, folder)

    def push_to_hub(self, commit_message: str = "Trained with postrl", **card: Any) -> str | None:
        """Upload RUN/model with a model card to args.push_to_hub, else to the folder's name; returns its address (None in
        processes other than the main one).

        Args:
            card: what create_model_card takes; blocking, token and revision are TRL's: the upload is waited for, and the token
                is the environment's.

        Raises:
            UsageError: there is no trained model yet.
            PostrlError: not logged in, offline, or refused; the folder stays.
        """
        if not self.is_world_process_zero():
            return None
        folder = RunFolder(self.args.output_dir or "")
        if not folder.model.is_dir():
            raise UsageError("there is no trained model yet", hint="call train() first")
        self.callbacks.on_push_begin()
        self.create_model_card(
            **{name: value for name, value in card.items() if name in ("model_name", "dataset_name", "tags")}
        )
        place = self.args.push_to_hub or folder.path.name
        with speaking(folder.note, f"the upload of the model to {place}"):  # other ranks wait, too
            return push_model(folder.model, place, commit_message)

    def push_while_training(self) -> None:
        """Upload the model as it is now, where push_to_hub names a place; a failure is told, and the run goes on."""
        if not self.args.push_to_hub:
            return
        self.save_model()
        try:
            told = f"uploaded to {self.push_to_hub()}"
        except PostrlError as error:
            told = f"not uploaded: {error.message}"
        self.opened_session.note(told)
