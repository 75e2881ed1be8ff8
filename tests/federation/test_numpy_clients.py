"""The `NumPyClient`s work in anybody's `ClientApp(client_fn=...)`, with Flower's own messages."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.client import Client as FlowerClient
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, recorddict_to_fitres
from flwr.supercore.task_identity import TaskIdentity

from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines import local
from fedsofim.federation.clients import OwnerClient, SimulatedClient, named
from fedsofim.federation.owner import NO_REASON, Owner
from fedsofim.privacy.ledger import Budget, Ledger
from fedsofim.privacy.refusals import Refusal
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies.aggregation import aggregate
from fedsofim.strategies.rule import broadcast, stage_broadcast, step
from fedsofim.strategies.stage import stage_std

Values = Callable[..., dict[str, Any]]


GEOMETRY = {"none": (), "private": ("transform=private", "transform.radius=3")}


class Nodes:
    """A foreign app: one context for each node, kept from round to round, and plain `FitIns`."""

    def __init__(self, client_fn: Callable[[Context], FlowerClient], nodes: int) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app = ClientApp(client_fn=client_fn)
        self.contexts = [
            Context(1, i, {"partition-id": i}, state=RecordDict(), run_config={})
            for i in range(nodes)
        ]

    def fit(self, node: int, arrays: list[Any], config: dict[str, Any]) -> FitRes:
        ins = FitIns(ndarrays_to_parameters(arrays), config)
        message = Message(fitins_to_recorddict(ins, keep_input=True), node, "train")
        message.metadata.__dict__["_message_id"] = "1"
        reply = self.app(message, self.contexts[node])
        return recorddict_to_fitres(reply.content, keep_input=True)


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        *((n, "none") for n in ("sofim", "fedavg", "scaffold", "ftrl", "fedfc", "adafedprox")),
        ("sofim", "private"),
        ("fedfc", "private"),
    ],
)
def test_a_foreign_app_gives_the_local_run(name: str, transform: str, values: Values) -> None:
    """Somebody's own server loop around our clients: the parameters of our engine, bit for bit."""
    experiment = prepare(parse(values(f"strategy={name}", "seed=3", *GEOMETRY[transform])))
    config, plan = experiment.config, experiment.plan
    rule, program, n = config.strategy, config.client, len(experiment.clients)

    def client_fn(context: Context) -> FlowerClient:
        mine = experiment.clients[int(context.node_config["partition-id"])]
        return SimulatedClient(
            program, plan, mine, context.state, config.seed, config.stages
        ).to_client()

    nodes, server = Nodes(client_fn, n), begin(experiment).server

    def gather(arrays: list[Any], number: int) -> Any:
        results = [nodes.fit(i, arrays, {"server_round": number}) for i in range(n)]
        assert [r.num_examples for r in results] == [c.data.size for c in experiment.clients]
        sent = [parameters_to_ndarrays(r.parameters) for r in results]
        return aggregate(np.stack([release for (release,) in sent]), np.ones(n), "uniform")

    while server.t < 0:
        stage, sizes = config.stages[server.t], np.array([c.data.size for c in experiment.clients])
        arrays = list(stage_broadcast(stage, server).values())
        std = stage_std(stage, server.t, plan, sizes, "uniform")
        G = gather(arrays, server.t + 1)
        server = stage.fold(server, G, std)._replace(t=server.t + 1)
    while server.t < config.rounds:
        sent = broadcast(rule, server)
        arrays = [sent.pop("theta"), *(sent[key] for key in sorted(sent))]
        server = step(rule, server, gather(arrays, server.t + 1), config.rounds)
    ours = local.run(experiment, begin(experiment), lambda now, G, **notes: False)
    np.testing.assert_array_equal(server.theta, ours.server.theta)


def test_an_owner_charges_its_ledger_in_a_foreign_app(values: Values, tmp_path: Path) -> None:
    experiment = prepare(parse(values("strategy=fedgd")))
    ledger = Ledger(tmp_path / "ledger.jsonl", Budget(epsilon=10.0, delta=1e-5), data="d")

    def client_fn(context: Context) -> FlowerClient:
        owner = Owner(experiment.clients[0], tmp_path, ledger)
        return OwnerClient(experiment.config.client, experiment.plan, owner).to_client()

    nodes, theta = Nodes(client_fn, 1), experiment.theta
    asked = {"server_round": 1, "run": "ab"}
    first, again = (nodes.fit(0, [theta], asked) for _ in range(2))
    assert first.metrics == again.metrics == {"charged": 1.0}
    assert first.parameters.tensors == again.parameters.tensors
    assert len(ledger.charges()) == 1
    assert first.status.code == Code.OK
    nodes.fit(0, [theta], {**asked, "server_round": 2})
    assert len(ledger.charges()) == 2


@pytest.mark.parametrize(
    ("epsilon", "ledger_text", "told"),
    [(0.1, None, Refusal.BUDGET), (10.0, "{}\n", Refusal.ACCOUNT)],
)
def test_a_foreign_app_tells_no_path_and_nothing_of_what_is_left(
    epsilon: float,
    ledger_text: str | None,
    told: Refusal,
    values: Values,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower sends the text of whatever a client raises to the server."""
    experiment, file = prepare(parse(values("strategy=fedgd"))), tmp_path / "ledger.jsonl"
    if ledger_text:
        file.write_text(ledger_text)
    ledger = Ledger(file, Budget(epsilon=epsilon, delta=1e-5), data="d")
    owner = Owner(experiment.clients[0], tmp_path, ledger)
    client = OwnerClient(experiment.config.client, experiment.plan, owner)
    with pytest.raises(ConfigError) as caught:
        client.fit([experiment.theta], {"server_round": 1, "run": "ab"})
    assert str(caught.value) == told
    assert ("is spent" if ledger_text is None else str(file)) in caplog.text  # for the owner
    monkeypatch.setattr(owner, "release", lambda *_: (tmp_path / "secret").read_bytes())
    with pytest.raises(ConfigError, match=f"^{re.escape(NO_REASON)}$"):
        client.fit([experiment.theta], {"server_round": 1, "run": "ab"})


def test_a_list_that_does_not_fit_is_told(values: Values) -> None:
    program = parse(values("strategy=scaffold")).client
    with pytest.raises(ConfigError, match=r"1 arrays; this client takes theta, "):
        named(program, [np.zeros(3)])
