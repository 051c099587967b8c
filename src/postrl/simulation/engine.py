"""`postrl grpo --engine simulated`: what a run would look like. The steps of the run, its folder and metrics, no model."""

from __future__ import annotations

from dataclasses import dataclass

from postrl.config import GRPOConfig
from postrl.console import note
from postrl.launch.owner import run_folder_of
from postrl.run.folder import RunFolder, with_run_folder
from postrl.run.metrics import MetricsWriter
from postrl.run.step_line import StepLine
from postrl.simulation.assumptions import Assumptions
from postrl.simulation.calibrate import assume, division_of
from postrl.simulation.loop import Division, Metrics, Report, simulate


@dataclass(frozen=True)
class Simulation:
    """A run that is ready to be simulated."""

    config: GRPOConfig
    assumed: Assumptions
    division: Division


def prepare(config: GRPOConfig) -> Simulation:
    """Check everything, and make nothing.

    Raises:
        PostrlError: a wrong assumption, too few devices, or a folder that is not empty.
    """
    named = with_run_folder(config)
    RunFolder(named.output_dir or "").check(named)
    assumed, placement = assume(config)
    assumed.speed()  # what is wrong with it shows now
    return Simulation(config, assumed, division_of(placement))


def run_steps(simulation: Simulation) -> Report:
    """max_steps steps, each a line of metrics.jsonl and of the screen; the report's settings name the run's folder."""
    division = simulation.division
    who = f"{division.servers} server(s) and {division.ranks} trainer rank(s)"
    with run_folder_of(simulation.config) as (config, folder), StepLine(every=config.logging_steps) as line:
        note(f"simulating {who}: no model, no data, simulated seconds")
        writer, total = MetricsWriter(folder.metrics), config.max_steps
        line.begin(0, total)

        def on_step(step: int, metrics: Metrics) -> None:
            with folder.writing("metrics"):
                row = writer.write(step, metrics)
                folder.save_progress(step, total)
            line.update(step, total, row)

        say, assumed = folder.note, simulation.assumed
        return simulate(config, assumed, division, steps=total, whole=True, on_step=on_step, note=say)
