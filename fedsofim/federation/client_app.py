"""Flower's entry point for a client: a simulated one, or the owner of real records.

Which of the two it is, the node's own config says, never the server: a node whose config names
`data` is an owner.
"""

import json
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsofim.clients import Client
from fedsofim.clients.group import transformed
from fedsofim.config.build import build
from fedsofim.config.parts import own_parts
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.family import end_with_parent
from fedsofim.core.threads import one_thread_a_product
from fedsofim.data.classes import Classes
from fedsofim.data.owned import Records
from fedsofim.federation.clients import answer, simulate
from fedsofim.federation.messages import pack, unpack
from fedsofim.federation.node import Node
from fedsofim.federation.owner import NO_REASON, Owner, hidden, hiding_errors
from fedsofim.federation.replies import MEMORY
from fedsofim.federation.sessions import questions_of
from fedsofim.federation.sum_clients import Sums
from fedsofim.federation.sum_owner import SumOwner
from fedsofim.federation.terms import Request, Terms
from fedsofim.privacy.account import check_ahead
from fedsofim.privacy.policy import Policy
from fedsofim.privacy.refusals import Refusal, RefusedError
from fedsofim.runs.experiment import clients_of, first_parameters, load_divided

end_with_parent()
app = ClientApp()
Arrays = dict[str, Array]
Values = dict[str, Any]
# How much of what is wrong with a message is sent back.
TOLD = 500


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Say who this node is."""
    return _answer(message, context, _hello)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Release what the server asks for, or say why not."""
    return _answer(message, context, _train)


@one_thread_a_product()
def _answer(
    message: Message,
    context: Context,
    reply: Callable[[Arrays, Values, Node | None, RecordDict], tuple[Arrays, Values]],
) -> Message:
    """Reply, or say why not.

    What is wrong with the message is told to the server in one line, for people to read there; a
    refusal in one of a few fixed texts; and of what an owner did not foresee nothing is told, for
    nobody knows what it says about records. The owner's own log has all of it in full.
    """
    try:
        node = _node(context.node_config)
        if node is not None:
            node.rules().check_size(*_size(message.content))
        content = pack(*reply(*unpack(message.content), node, context.state))
    except RefusedError as error:
        _log(error, context)
        final = error.told != Refusal.BUSY  # who refuses for good is asked no more
        content = _refusal(error.told, context, refused=final)
    except ConfigError as error:
        _log(error, context)
        content = _refusal(str(error)[:TOLD], context)
    except Exception as error:
        if "data" not in context.node_config:
            raise
        content = _refusal(str(hidden(error)), context)
    return Message(content, reply_to=message)


def _refusal(told: str, context: Context, *, refused: bool = False) -> RecordDict:
    client = context.node_config.get("partition-id", -1)
    return pack({}, {"error": told, "refused": refused, "client": client})


def _log(error: ConfigError, context: Context) -> None:
    """Tell the owner in one line; what the server wrote may be in it, so no control characters."""
    if "data" in context.node_config and str(error) != NO_REASON:
        text = "".join(c if c.isprintable() else "?" for c in str(error))
        logging.getLogger(__name__).warning("Refused: %s", text)


def _size(content: RecordDict) -> tuple[int, int]:
    """The bytes of a message, and of the job in it, before anything is decoded."""
    arrays = sum(len(a.data) + len(k) for r in content.array_records.values() for k, a in r.items())
    values = [v for record in content.config_records.values() for v in record.values()]
    lists = [v for v in values if isinstance(v, list)]
    texts = [v for v in values if isinstance(v, str | bytes | list)]
    texts += [v for some in lists for v in some if isinstance(v, str | bytes)]
    jobs = [record.get("job", "") for record in content.config_records.values()]
    sizes = [len(job) for job in jobs if isinstance(job, str | bytes)]  # JSON is read from both
    return arrays + sum(map(len, texts)), sum(sizes)


def _node(values: Mapping[str, Any]) -> Node | None:
    """The owner's settings, of which nobody else hears; `None` for a node of a simulation."""
    if "data" not in values:
        require("num-partitions" in values, "node-config: names no data file")
        return None
    names = {key.replace("-", "_"): value for key, value in values.items()}
    with hiding_errors():
        node = build(Node, names, "node-config")
        node.rules()
    return node


def _hello(
    arrays: Arrays, values: Values, node: Node | None, state: RecordDict
) -> tuple[Arrays, Values]:
    if node is None:
        return {}, {"owner": False}
    config = _agreed(values["job"], node.rules())
    if named := str(values.get("classes", "")):  # both lists were declared, so both may be told
        run = Classes.of(named.split("|"))
        node.agreed().require_same(run, "the run", "this owner")
    records = _records(node)
    rounds, owner = config.schedule.busiest(config.rounds), _owner(node, records, config)
    terms, honest = _terms(config), 1
    said: Values = {
        "size": len(records.y),
        "features": records.features,
        "classes": records.classes.count,
        "names": node.names,
    }
    if isinstance(owner, SumOwner):
        terms = owner.terms(terms)
        honest = owner.honest(terms)
        said |= {"key": owner.peers.keys[node.partition_id], "peers": owner.peers.digest}
    program, plan, stages, sharing = terms
    check_ahead(
        owner.ledger,
        program,
        plan,
        run=values["run"],
        rounds=rounds,
        stages=stages,
        sharing=sharing,
        honest=honest,
    )
    return {}, {"owner": True, "client": node.partition_id, **said}


def _owner(node: Node, records: Records, config: Config) -> Owner:
    """Who answers: one that adds to sums, if the run's clients share their noise."""
    mine, ledger = Client(node.partition_id, records.examples()), node.ledger(records)
    if config.sharing is None:
        return Owner(mine, Path(node.state), ledger)
    with hiding_errors():
        peers = node.check_peers()
    if peers is None or len(peers.keys) != config.partition.clients:
        known = f"--peers names {len(peers.keys)}" if peers else "there is no file of --peers"
        raise RefusedError(
            f"privacy.trust=aggregate: a run of {config.partition.clients} clients, and {known}; "
            "without all keys a server could make clients up",
            Refusal.UNPROTECTED,
        )
    return SumOwner(mine, Path(node.state), ledger, peers)


def _records(node: Node) -> Records:
    """An owner's records; what is wrong with them is the owner's to know."""
    with hiding_errors():
        return node.records()


def _train(
    arrays: Arrays, values: Values, node: Node | None, state: RecordDict
) -> tuple[Arrays, Values]:
    if node:
        values = {"clients": [node.partition_id], **values}
    sent, said = _deployed(arrays, values, node) if node else _simulated(arrays, values, state)
    return sent, said | {"round": values["round"], "clients": values["clients"]}


def _simulated(arrays: Arrays, values: Values, state: RecordDict) -> tuple[Arrays, Values]:
    config, terms, clients, length = _simulation(values["job"])
    received = {k: v for k, v in arrays.items() if not k.startswith(MEMORY)}
    exact = config.privacy.noise == "exact"
    chosen, t = [clients[i] for i in values["clients"]], values["round"]
    if t >= 0:
        chosen = transformed(chosen, received, exact)
    for client in chosen:
        clients[client.id] = client  # the next round's map is likely the same
    memory = {k.removeprefix(MEMORY): v for k, v in arrays.items() if k.startswith(MEMORY)}
    said: Values = {"sizes": [client.data.size for client in chosen]}
    if config.sharing is not None:
        sums = Sums(terms, values["run"], len(clients), length, config.noise)
        asked = list(zip(chosen, questions_of(values), strict=True))
        said["answers"], after = sums.answers(asked, received, memory, state)
        return {MEMORY + name: rows for name, rows in after.items()}, said
    releases, after = simulate(
        terms, chosen, config.noise(t), t=t, received=received, memory=memory
    )
    sent = {"release": releases} | {MEMORY + name: rows for name, rows in after.items()}
    return sent, said


@lru_cache(maxsize=2)
def _simulation(job: str) -> tuple[Config, Terms, list[Client], int]:
    """The clients of a simulation, and how many parameters; made once in each process."""
    config = parse(json.loads(job))
    data, parts = load_divided(config)
    network = config.model.network(data.train_x.shape[1:], data.classes)
    theta = first_parameters(config, network)
    return config, _terms(config), clients_of(network, data, parts), theta.size


def _terms(config: Config) -> Terms:
    return Terms(config.client, config.plan(), config.stages, config.sharing)


def _deployed(arrays: Arrays, values: Values, node: Node) -> tuple[Arrays, Values]:
    config = _agreed(values["job"], node.rules())
    require(values["clients"] == [node.partition_id], "the server asks for someone else")
    t = values["round"]
    require(-len(config.stages) <= t < config.rounds, f"round {t}: there is none")
    owner, terms = _owner(node, _records(node), config), _terms(config)
    request = Request(run=values["run"], t=t, asked=values["job"])
    said: Values = {"sizes": [owner.client.data.size]}
    if isinstance(owner, SumOwner):
        said["answers"] = []
        for question in questions_of(values)[0]:
            require(-len(config.stages) <= question.t < config.rounds, "rounds: there is none")
            about = request._replace(t=question.t)
            asked = owner.answer(terms, about, question, arrays) if question.words else b""
            said["answers"].append(asked)
        return {}, said | {"charged": owner.charged(terms, request)}
    release, charged = answer(terms, owner, request, arrays)
    return {"release": release[None]}, said | {"charged": charged}


def _agreed(job: str, policy: Policy) -> Config:
    """The run that the server proposes, if it is one that an owner takes part in."""
    values = json.loads(job)
    require(isinstance(values, dict), "job: not a run's config")
    # No code is imported because a server names it: an owner installs it first.
    own = ", ".join(own_parts(values))
    require(not own, f"{own}: an owner runs only code that is installed here, under its own name")
    policy.check_job(values)
    # Else they would be counted in a file that the server names, on this machine.
    require(values["partition"].get("clients") is not None, "partition.clients: say how many")
    config = parse(values)
    require(config.model.linear, f"model={config.model.name}: a deployment trains a head")
    policy.check_plan(config.plan())
    return config
