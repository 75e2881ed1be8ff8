"""Refuses parts of a config that do not go together, before any data is read."""

import math
from typing import TYPE_CHECKING

import numpy as np

from fedsofim.clients import CLIENTS, Program
from fedsofim.config.trial import try_out
from fedsofim.core.errors import ConfigError, require
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.strategies.aggregation import bears
from fedsofim.strategies.rule import start

if TYPE_CHECKING:
    from fedsofim.config.schema import Config


def check(config: "Config") -> None:
    """Refuse parts that do not go together."""
    disclosure = checked_disclosure(config.client, config.schedule.busiest(config.rounds))
    _check_rounds(config)
    _check_aggregation(config)
    _check_method(config, disclosure)
    _check_start(config, disclosure)
    _check_l2(config)
    if config.output.theory:
        _check_theory(config)
    _check_privacy(config, disclosure)
    if type(config.client) not in CLIENTS.values() and config.private:
        try_out(config.client, config.strategy, config.plan(), disclosure, config.rounds)


def checked_disclosure(program: Program, rounds: int) -> Disclosure:
    """What a program says that it discloses, if that does not contradict itself or the program."""
    try:
        disclosure = program.disclosure
        require(isinstance(disclosure, Disclosure), "disclosure: must be a Disclosure")
        disclosure.check(rounds)
    except ConfigError as error:
        raise ConfigError(f"client={type(program).__name__}: {error}") from None
    return disclosure


def _check_rounds(config: "Config") -> None:
    """Who must take part in a round."""
    n, least, name = config.schedule.size, config.engine.min_clients, config.strategy_name
    require(
        least is None or least <= n,
        f"engine.min_clients={least}: a round has only {n} clients",
    )
    require(
        not config.client.every_round
        or (least in (None, n) and config.engine.on_missing != "skip"),
        f"engine.min_clients, engine.on_missing=skip: the clients of strategy={name} must take "
        "part in every round",
    )
    require(
        n == config.partition.clients or not config.client.every_round,
        f"participation={config.participation}: the clients of strategy={name} must take part in "
        "every round",
    )


def _check_aggregation(config: "Config") -> None:
    """Whether enough clients take part to bear the malicious ones."""
    n, fraction, how = config.schedule.size, config.malicious_fraction, config.aggregation
    require(0 <= fraction < 0.5, f"malicious_fraction={fraction}: must be >= 0 and < 0.5")
    few = [
        replies
        for replies in range(config.engine.min_clients or n, n + 1)
        if not bears(how, fraction, replies)
    ]
    require(
        not few,
        f"aggregation={how}: {few[:1]} releases are too few to bear malicious_fraction={fraction}; "
        "ask for more clients, or for less",
    )


def _check_method(config: "Config", disclosure: Disclosure) -> None:
    """Whether the server's rule, the clients and the model fit together."""
    rule, client, name = config.strategy, config.client, config.strategy_name
    blank = np.zeros((2, 2), np.float32)
    sent = rule.broadcast(start(rule, blank))
    expects = rule.release_shape(blank) != (0,)
    require(
        client.needs <= sent.keys() and disclosure.sends == expects,
        f"client={type(client).__name__}: does not go with strategy={name}",
    )
    require(
        config.model.linear or not rule.stages,
        f"strategy={name}: reads features, and so needs model=head",
    )
    require(
        disclosure.sends or config.transform.maps or not rule.stages,
        f"strategy={name}: reads centred records; use transform=centre, private or public",
    )
    require(
        config.average == "none" or not client.keeps_models,
        f"average={config.average}: averages the server's model, and the clients of strategy="
        f"{name} have their own; use average=none",
    )
    require(
        config.model.linear or not config.transform.maps,
        f"transform={config.transform.name}: maps features, and so needs model=head",
    )
    require(
        disclosure.sends or bool(rule.stages) or not config.stages,
        f"strategy={name}: sends nothing, so there is nothing that a set-up could prepare; use "
        "transform=none",
    )


def _check_start(config: "Config", disclosure: Disclosure) -> None:
    """Whether there is something that a head in one shot could be the beginning of."""
    if config.start == "none":
        return
    share = config.start_share
    require(0 < share < 1, f"start_share={share}: must be between 0 and 1")
    require(
        disclosure.sends and not config.client.keeps_models,
        f"start=ridge: is where the server's training begins, and strategy={config.strategy_name} "
        "has none; use start=none",
    )
    require(
        config.transform.maps and config.model.linear,
        "start=ridge: reads centred records; use transform=private, centre or public, and "
        "model=head",
    )


def _check_l2(config: "Config") -> None:
    """Whether the server can add the gradient of a penalty to what it aggregates."""
    l2, name, how = config.strategy.l2, config.strategy_name, config.transform.name
    require(0 <= l2 < math.inf, f"strategy.l2={l2}: must be a finite number >= 0")
    require(
        not l2 or config.client.gradients,
        f"strategy.l2={l2}: the clients of strategy={name} do not send one gradient at the "
        "server's parameters, to which its own could be added; use sofim, fedgd, fedadam, fedyogi "
        "or fedfc",
    )
    require(
        not l2 or config.transform.maps or how == "none",
        f"strategy.l2={l2}: transform={how} changes gradients before the clip, and so would have "
        "to change that of the penalty; use transform=none",
    )


def _check_theory(config: "Config") -> None:
    """Whether the paper's analysis says something about this run."""
    told, name = "output.theory=true", config.strategy_name
    require(config.model.linear, f"{told}: the constants are known for model=head alone")
    require(
        config.client.gradients,
        f"{told}: the theorems are about one clipped gradient a client, which those of strategy="
        f"{name} do not send; use sofim or fedgd",
    )
    require(
        config.aggregation in ("uniform", "size"),
        f"{told}: the theorems are about means; use aggregation=uniform or size",
    )
    require(
        config.transform.maps or config.transform.name == "none",
        f"{told}: transform={config.transform.name} changes gradients before the clip; use none",
    )


def _check_privacy(config: "Config", disclosure: Disclosure) -> None:
    """Whether the promise holds for what is disclosed."""
    privacy, transform = config.privacy, config.transform
    require(
        privacy.trust == "server" or disclosure.shares_noise,
        "privacy.trust=aggregate: this client acts on its own releases before they are summed, "
        "which the shared noise does not hide; use trust=server",
    )
    require(
        privacy.trust == "server" or config.client.contributes,
        f"privacy.trust=aggregate: {type(config.client).__name__} does not say what it adds to a "
        "sum; give it a method contribute, or use trust=server",
    )
    require(
        privacy.adjacency == "replace-one" or not disclosure.record_moves_others,
        "privacy.adjacency=add-remove: adding a record would change which records take turns "
        "together; use replace-one, or client.batches=1",
    )
    require(
        privacy.noise == "seeded" or config.model.linear or privacy.adjacency == "replace-one",
        "privacy.noise=exact: a network's bound is for replacing a record; use replace-one",
    )
    require(
        privacy.noise == "seeded" or getattr(config.model, "grads", "own") == "own",
        "privacy.noise=exact: how Opacus rounds a record's gradient may depend on other records; "
        "use model.grads=own",
    )
    require(
        not (disclosure.uses_part and config.private),
        "client.batch_size: a step is charged to all records of a client, so with a budget it "
        "uses them all; give client.batch_size=null, or privacy=none",
    )
    z = privacy.noise_multiplier
    noisy = z != 0 if z is not None else math.isfinite(privacy.epsilon)
    known = getattr(transform, "i_know_this_is_not_private", False)
    require(
        transform.source != "private" or not noisy or known,
        f"transform={transform.name}: reads private records, which no noise then hides; use "
        "privacy=none, or say transform.i_know_this_is_not_private=true",
    )
