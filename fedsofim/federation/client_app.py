"""Flower's door to a client: a simulated one, or the owner of real records.

Which of the two it is, the node's own config says, never the server: a node whose config names
`data` is an owner.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsofim.clients import Client
from fedsofim.config.build import build
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.participation import SETUP
from fedsofim.data.owned import Records
from fedsofim.federation.clients import answer, simulate
from fedsofim.federation.messages import pack, unpack
from fedsofim.federation.node import Node
from fedsofim.federation.owner import Owner, Request, untold
from fedsofim.federation.replies import MEMORY
from fedsofim.privacy.account import check_ahead
from fedsofim.privacy.ledger import RefusedError
from fedsofim.privacy.plan import Plan
from fedsofim.runs.experiment import divide, load_data

app = ClientApp()
Arrays = dict[str, Array]
Values = dict[str, Any]


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Say who this node is."""
    return _answer(message, context, _hello)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Release what the server asks for, or say why not."""
    return _answer(message, context, _train)


def _answer(
    message: Message,
    context: Context,
    reply: Callable[[Arrays, Values, Node | None], tuple[Arrays, Values]],
) -> Message:
    """Reply; what is wrong is told to the server in one line, for people to read there.

    What an owner did not foresee is not told, for nobody knows what it says about records.
    """
    try:
        node = _node(context.node_config)
        content = pack(*reply(*unpack(message.content), node))
    except ConfigError as error:
        content = _refusal(error, context)
    except Exception as error:
        if "data" not in context.node_config:
            raise
        content = _refusal(untold(error), context)
    return Message(content, reply_to=message)


def _refusal(error: ConfigError, context: Context) -> RecordDict:
    client, refused = context.node_config.get("partition-id", -1), isinstance(error, RefusedError)
    return pack({}, {"error": str(error), "refused": refused, "client": client})


def _node(values: Mapping[str, Any]) -> Node | None:
    """The owner's settings; `None` for a node of a simulation."""
    if "data" not in values:
        require("num-partitions" in values, "node-config: names no data file")
        return None
    names = {key.replace("-", "_"): value for key, value in values.items()}
    return build(Node, names, "node-config")


def _hello(arrays: Arrays, values: Values, node: Node | None) -> tuple[Arrays, Values]:
    if node is None:
        return {}, {"owner": False}
    records = _records(node)
    config = _agreed(values["job"])
    rounds = config.schedule.busiest(config.rounds)
    check_ahead(node.ledger(), config.client, config.plan(), run=values["run"], rounds=rounds)
    said = {"size": len(records.y), "features": records.features, "classes": records.classes}
    return {}, {"owner": True, "client": node.partition_id, **said}


def _records(node: Node) -> Records:
    """An owner's records; what is wrong with them is the owner's to know."""
    try:
        return node.records()
    except Exception as error:
        raise untold(error) from None


def _train(arrays: Arrays, values: Values, node: Node | None) -> tuple[Arrays, Values]:
    sent, said = _deployed(arrays, values, node) if node else _simulated(arrays, values)
    return sent, said | {"round": values["round"], "clients": values["clients"]}


def _simulated(arrays: Arrays, values: Values) -> tuple[Arrays, Values]:
    config, plan, clients = _simulation(values["job"])
    chosen = [clients[i] for i in values["clients"]]
    received = {k: v for k, v in arrays.items() if not k.startswith(MEMORY)}
    memory = {k.removeprefix(MEMORY): v for k, v in arrays.items() if k.startswith(MEMORY)}
    releases, after = simulate(
        config.client, plan, chosen, config.seed, values["round"], received, memory
    )
    sent = {"release": releases} | {MEMORY + name: rows for name, rows in after.items()}
    return sent, {"sizes": [client.data.size for client in chosen]}


@lru_cache(maxsize=2)
def _simulation(job: str) -> tuple[Config, Plan, list[Client]]:
    """The clients of a simulation, made once in each process."""
    config = parse(json.loads(job))
    data = load_data(config)
    network = config.model.network(data.train_x.shape[1:], data.classes)
    parts = config.partition.split(data.train_y, data.classes, config.seed, data.client_id)
    return config, config.plan(), divide(network, data, parts)


def _deployed(arrays: Arrays, values: Values, node: Node) -> tuple[Arrays, Values]:
    config = _agreed(values["job"])
    require(values["clients"] == [node.partition_id], "the server asks for someone else")
    t = values["round"]
    require(t == SETUP or 0 <= t < config.rounds, f"round {t}: there is none")
    mine = Client(node.partition_id, _records(node).examples())
    owner = Owner(mine, Path(node.state), node.ledger())
    request = Request(run=values["run"], t=t, asked=values["job"])
    release, charged = answer(config.client, config.plan(), owner, request, arrays)
    return {"release": release[None]}, {"sizes": [mine.data.size], "charged": charged}


def _agreed(job: str) -> Config:
    """The run that the server proposes, if it is one that an owner can take part in."""
    values = json.loads(job)
    # Else they would be counted in a file that the server names, on this machine.
    require(values["partition"].get("clients") is not None, "partition.clients: say how many")
    config = parse(values)
    if config.privacy.trust != "server":
        raise RefusedError(
            "privacy.trust=aggregate: there is no secure aggregation here, the server would see "
            "a release that carries only a part of the noise"
        )
    return config
