"""Which part of DP-KFC helps or hurts a network, with factors from the private records themselves.

python scripts/kfc_forms.py --images cifar10.npz --public cifar100.npz [--models MLP,CNN]

The data, networks and rates are those of kfc_networks.py. For each form of the transform it prints
how much records agree, that is the norm of the mean of their clipped gradients over the clip, at
the first parameters: it is all that noise leaves to be seen. And the accuracy on held-out records
at epsilon 3 with one client, at the best of the rates. Nothing here is private.
"""

import argparse
from pathlib import Path

import numpy as np
from kfc_networks import ARMS, SMALL, TUNING, Place, make_data, models

from fedsofim.clients.group import transformed
from fedsofim.config.compose import compose_many
from fedsofim.config.schema import parse
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies.rule import broadcast
from fedsofim.studies.results import Results, curve_of

ORACLE = ARMS["KFC, private data (not private)"] + " transform.count=512"
FORMS = {
    "DP-SGD": ARMS["DP-SGD"],
    "KFC, damping 1": "transform.damping=1",
    "KFC, damping 0.1": "transform.damping=0.1",
    "KFC, damping 0.01": "transform.damping=0.01",
    "KFC, damping 0.001": "transform.damping=0.001",
    "the same, each layer normalised by itself": "transform.damping=0.001 "
    "transform.normalise=gradients",
    "KFC, damping 0.1, `U_A` alone": "transform.damping=0.1 transform.sides=input",
    "KFC, damping 0.1, `U_G` alone": "transform.damping=0.1 transform.sides=output",
    "the paper's: damping 0.001 as it is": "transform.absolute=true",
    "the authors' code: that, `U_A` alone": "transform.absolute=true transform.sides=input",
}


def overrides(place: Place, model: str, form: str, rate: float) -> list[str]:
    """The config of a run."""
    told = form if form.startswith("strategy") else f"{ORACLE} transform.normalise=network {form}"
    own = {text.split("=")[0]: text for text in told.split()}  # of two values the last counts
    return [
        *models(place)[model],
        *own.values(),
        *("partition=iid", "partition.clients=1", "aggregation=size", "privacy.clip=1"),
        *(f"rounds={place.size.rounds}", "privacy.epsilon=3", f"strategy.lr={rate:g}"),
        *TUNING,
    ]


def agreement(text: list[str]) -> float:
    """The norm of the mean of all clipped gradients over the clip, at the first parameters."""
    experiment = prepare(parse(*compose_many([text])))
    server = begin(experiment).server
    received = broadcast(experiment.config.strategy, server)
    (client,) = transformed(experiment.clients, received)
    total = client.data.gradient_sum(server.theta, 1.0).value
    return float(np.linalg.norm(total)) / client.data.size


def main() -> None:
    """Print a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, required=True, help=".npz of the private images")
    parser.add_argument("--public", type=Path, required=True, help=".npz of public images")
    parser.add_argument("--models", default="MLP,CNN")
    parser.add_argument("--store", type=Path, default=Path("outputs/kfc-networks"))
    a = parser.parse_args()
    place, names = Place(a.store, SMALL), a.models.split(",")
    make_data(place, a.images, a.public)
    results = Results(a.store / "forms.jsonl")
    for model in names:
        print(f"| {model} | records agree | accuracy |\n| --- | ---: | ---: |")
        for name, form in FORMS.items():
            texts = [overrides(place, model, form, rate) for rate in SMALL.steps]
            configs = [parse(values) for values in compose_many(texts)]
            rows = results.run(configs, lambda _, result: curve_of(result), every=5, jobs=1)
            best = max(100 * (row["curve"][-1]["accuracy"] or 0) for row in rows)
            print(f"| {name} | {agreement(texts[0]):.3f} | {best:.1f} |", flush=True)


if __name__ == "__main__":
    main()
