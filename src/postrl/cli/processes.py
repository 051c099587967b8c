"""Hidden commands: the processes that the launcher starts, each given its run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder.")]


def add_to(app: typer.Typer) -> None:
    app.command(hidden=True)(learner)
    app.command(hidden=True)(worker)


def learner(run_dir: RunDir, debug: bool = False) -> None:
    """A trainer rank of the run in RUN_DIR; started by `accelerate launch`."""
    from postrl.host.stopping import bystander

    bystander()  # until the training hears them
    from postrl.config import GRPOConfig
    from postrl.launch.owner import writing_as_rank
    from postrl.learning.sharding import leave_ranks
    from postrl.run.connections import Connections
    from postrl.run.folder import RunFolder
    from postrl.trainer import GRPOTrainer

    folder = RunFolder(run_dir)
    trainer = GRPOTrainer(args=GRPOConfig.from_yaml(folder.config))
    trainer.connections = Connections.from_env()
    with folder.reporting_errors("trainer"), writing_as_rank(folder):
        trainer.train(resume_from_checkpoint=True)  # the launcher has checked that the folder is new, or may be resumed
        trainer.close()
    leave_ranks()


def worker(run_dir: RunDir, debug: bool = False) -> None:
    """The rollout worker of the run in RUN_DIR."""
    from postrl.host.stopping import bystander

    bystander()
    from postrl.run.folder import RunFolder
    from postrl.worker.process import worker_main

    with RunFolder(run_dir).reporting_errors("worker"):
        code = worker_main(str(run_dir))
    raise typer.Exit(code)
