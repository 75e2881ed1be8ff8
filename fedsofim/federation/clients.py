"""Clients: what they compute for a round, and the same as Flower's `NumPyClient`s.

Our own handler calls `simulate` and `answer`, with arrays by name. The `NumPyClient`s call them,
too, and fit as they are into anybody's app:

    def client_fn(context):
        mine = clients[context.node_config["partition-id"]]
        return SimulatedClient(program, plan, mine, state=context.state).to_client()

    app = ClientApp(client_fn=client_fn)

`fit` takes the parameters as Flower has them, a list of arrays: theta, then what else the program
needs, by name in alphabetical order. It returns one array, the release, and the number of records.
Its config says `server_round`, from 1; 0 asks for what is released before the first round.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from fedsofim.clients.program import Client, Noise, Program, transformed
from fedsofim.core.arrays import Array, flatten, unflatten
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.participation import SETUP
from fedsofim.federation.messages import encode, unpack_arrays
from fedsofim.federation.owner import Owner, Request, untold
from fedsofim.privacy.mechanism import seeded
from fedsofim.privacy.plan import Plan
from fedsofim.privacy.refusals import RefusedError

Fit = tuple[NDArrays, int, dict[str, Scalar]]


def simulate(
    program: Program,
    plan: Plan,
    clients: Sequence[Client],
    noise: Noise,
    *,
    t: int,
    received: Mapping[str, Array],
    memory: Mapping[str, Array],
) -> tuple[Array, dict[str, Array]]:
    """The releases of some clients of a simulation, stacked, and what they remember after it.

    Args:
        program: what clients do.
        plan: the clip and the noise.
        clients: who they are.
        noise: the clients' noise in this round.
        t: the round, from 0, or `SETUP`.
        received: what the server broadcast, by name.
        memory: what they remember, by name; nothing before their first round.
    """
    if t == SETUP:
        released = program.setup(clients, plan, noise)
        require(released is not None, "these clients release nothing before the first round")
        return np.asarray(released), {}
    blank = program.init(received["theta"], len(clients))
    state = unflatten(blank, memory) if memory else blank
    releases, after = program.release(received, transformed(clients, received), state, plan, noise)
    return releases, flatten(after)


def answer(
    program: Program, plan: Plan, owner: Owner, request: Request, received: Mapping[str, Array]
) -> tuple[Array, float]:
    """An owner's release, if its budget covers it, and all that the run was charged for so far."""
    if request.t == SETUP:
        return owner.setup(program, plan, request)
    return owner.release(program, plan, received, request)


def named(program: Program, parameters: NDArrays) -> dict[str, Array]:
    """Flower's list of arrays, by name: theta, then what the program needs in alphabetical order.

    A list of one more or two more than that carries the proximal pull or a transform's factors.
    """
    names = ["theta", *sorted(program.needs - {"theta"})]
    more = {1: ["mu"], 2: ["U_A", "U_G"]}.get(len(parameters) - len(names), [])
    require(
        len(parameters) == len(names) + len(more),
        f"parameters: {len(parameters)} arrays; this client takes {', '.join(names)}",
    )
    return dict(zip(names + more, parameters, strict=True))


def round_of(config: Mapping[str, Scalar]) -> int:
    """The round that a config speaks of, from 0, or `SETUP`."""
    number = config.get("server_round")
    require(type(number) is int and number >= 0, "config: must say server_round, from 1")
    assert isinstance(number, int)
    return number - 1 if number else SETUP


class SimulatedClient(NumPyClient):
    """One client of a simulation.

    Args:
        program: what it does.
        plan: the clip and the noise.
        client: who it is, and its records.
        state: where it keeps what it remembers; the state of Flower's context lasts for a run.
        seed: of the run, from which the noise is drawn.
    """

    def __init__(
        self, program: Program, plan: Plan, client: Client, state: RecordDict, seed: int = 0
    ) -> None:
        self.program, self.plan, self.client = program, plan, client
        self.state, self.seed = state, seed

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Fit:
        """This client's release."""
        t, kept = round_of(config), self.state.get("memory", ArrayRecord())
        assert isinstance(kept, ArrayRecord)
        received = named(self.program, parameters) if t != SETUP else {}
        memory = unpack_arrays(kept)
        noise = seeded(self.seed, t)
        (release,), after = simulate(
            self.program, self.plan, [self.client], noise, t=t, received=received, memory=memory
        )
        self.state["memory"] = ArrayRecord(encode(after))
        return [release], self.client.data.size, {}


class OwnerClient(NumPyClient):
    """The owner of some records, with its own ledger and noise; what it remembers is on its disk.

    Its config says also `run`, the run's name in hexadecimal digits, by which its account is kept.

    Args:
        program: what it does.
        plan: the clip and the noise.
        owner: whose records, ledger and noise.
    """

    def __init__(self, program: Program, plan: Plan, owner: Owner) -> None:
        self.program, self.plan, self.owner = program, plan, owner

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Fit:
        """This owner's release, if its budget covers it."""
        t = round_of(config)
        received = named(self.program, parameters) if t != SETUP else {}
        request = Request(run=str(config.get("run", "")), t=t, asked=str(config.get("job", "")))
        try:
            release, charged = answer(self.program, self.plan, self.owner, request, received)
        except RefusedError as error:  # Flower sends the text of what is raised to the server
            untold(error)
            raise ConfigError(error.told) from None
        except ConfigError:
            raise
        except Exception as error:
            raise untold(error) from None
        return [np.asarray(release)], self.owner.client.data.size, {"charged": charged}
