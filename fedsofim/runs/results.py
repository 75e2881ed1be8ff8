"""What a finished run leaves: its summary, its model, and its page."""

from datetime import UTC, datetime

from fedsofim import __version__
from fedsofim.config.schema import Config
from fedsofim.core.errors import ConfigError
from fedsofim.reports import card, run_page
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.directory import Row, RunDir, finite
from fedsofim.runs.evaluation import extra_scores, personal_models, personal_scores
from fedsofim.runs.experiment import DEVICE, Experiment, RunState
from fedsofim.runs.record import Released
from fedsofim.runs.scoring import Final
from fedsofim.strategies.average import model_of


def summarise(experiment: Experiment, state: RunState, last: Row, final: Final | None) -> Row:
    """A run in a few numbers; what was spent is what was released, not what was planned.

    Args:
        experiment: the run.
        state: after its last round.
        last: the last round's row.
        final: the scores of the final model, if there is a test set.
    """
    config, plan, released = experiment.config, experiment.plan, state.record.released
    summary: Row = {
        "strategy": config.strategy_name,
        "transform": config.transform.name,
        "model": config.model.name,
        "dataset": config.dataset.name,
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        **{key: value for key, value in last.items() if key.startswith("accuracy_")},
        **(final.public() if final else {}),
        **(final.by_client() if final and shows_clients(config) else {}),
        **{key: last[key] for key in extra_scores(experiment, state) if key in last},
        "epsilon": last["epsilon"],
        "delta": plan.delta if config.private else None,
        "noise_multiplier": plan.noise_multiplier,
        "noise_std": plan.noise_std,
        "releases": released.rounds,
        "clip": finite(plan.clip),
        "adjacency": config.privacy.adjacency,
        "trust": config.privacy.trust,
        "aggregation": config.aggregation,
        "clients": config.partition.clients,
        "participation": config.participation,
        "rounds": max(0, state.server.t),
        "seed": config.seed,
        "seconds": last["seconds"],
    }
    told = phases(released, state.server.t)
    return summary | {"phases": told} if told else summary


def shows_clients(config: Config) -> bool:
    """Whether summary and page tell how well each client's classes are served.

    With exact noise they may be shared, as epsilon covers them: `clients.json` alone then has it.
    """
    return config.privacy.noise == "seeded" or config.output.counts


def phases(released: Released, rounds: int) -> str:
    """Which rounds used which noise, where it changed in the course of a run; else empty."""
    rows = [
        (start, std, count)
        for start, _, std, count in zip(*(a.tolist() for a in released), strict=True)
        if start >= 0
    ]
    if len(rows) < 2:
        return ""
    ends = [start for start, _, _ in rows[1:]] + [rounds]
    return "; ".join(
        f"rounds {start + 1} to {end}: {count:g} releases with noise std {std:.6g}"
        for (start, std, count), end in zip(rows, ends, strict=True)
    )


def write_results(
    experiment: Experiment, state: RunState, place: RunDir, summary: Row, final: Final | None
) -> None:
    """Write the model, each client's own where it has one, scores, summary, page and card."""
    place.write_arrays("model.npz", theta=model_of(state.server))
    if final:
        place.write_json("scores.json", final.table(experiment.partition.get("classes", ())))
        if final.clients:
            place.write_json("clients.json", final.clients)
    if experiment.own_tests:
        scores = personal_scores(experiment, state)
        own = personal.table(scores, experiment.partition, experiment.own_tests)
        place.write_json("personal.json", own)
        place.write_arrays("personal.npz", theta=personal_models(experiment, state))
    finished = _finished(place, summary)
    place.write_json("summary.json", summary)
    engine = experiment.config.engine.name
    about = {"finished": finished, "version": __version__, "engine": engine, "device": DEVICE}
    if experiment.made:
        about["features"] = experiment.made
    place.write_json("about.json", about)
    place.write("report.html", run_page.page_of(place).encode())
    card.write(place)


def _finished(place: RunDir, summary: Row) -> str:
    """When a run was finished: now, or what its directory says if no round has come since."""
    try:
        if place.read_json("summary.json") == summary:
            return str(place.read_json("about.json")["finished"])
    except (FileNotFoundError, ConfigError, LookupError, TypeError):
        pass  # it is finished for the first time, or what it says of itself is damaged
    return datetime.now(UTC).isoformat(timespec="seconds")
