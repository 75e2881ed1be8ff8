"""Clients: what they compute for a round, and the same as Flower's `NumPyClient`s.

Our own handler calls `simulate` and `answer`, with arrays by name. The `NumPyClient`s call them,
too, and fit as they are into anybody's app:

    def client_fn(context):
        mine = clients[context.node_config["partition-id"]]
        return SimulatedClient(program, plan, mine, state=context.state).to_client()

    app = ClientApp(client_fn=client_fn)

`fit` takes the parameters as Flower has them, a list of arrays: theta, then what else the program
needs, by name in alphabetical order. It returns one array, the release, and the number of records.
Its config says `server_round`, from 1; 0 asks for the last stage before the first round, -1 for the
one before it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from fedsofim.clients.group import Client, transformed
from fedsofim.clients.program import Noise, Program, release_stage
from fedsofim.core.arrays import Array, flatten, unflatten
from fedsofim.core.errors import ConfigError, require
from fedsofim.federation.messages import encode, unpack_arrays
from fedsofim.federation.owner import Owner, hidden
from fedsofim.federation.terms import Request, Terms
from fedsofim.privacy.mechanism import seeded
from fedsofim.privacy.plan import Plan
from fedsofim.privacy.refusals import RefusedError
from fedsofim.strategies.stage import Stage

Fit = tuple[NDArrays, int, dict[str, Scalar]]


def simulate(
    terms: Terms,
    clients: Sequence[Client],
    noise: Noise,
    *,
    t: int,
    received: Mapping[str, Array],
    memory: Mapping[str, Array],
) -> tuple[Array, dict[str, Array]]:
    """The releases of some clients of a simulation, stacked, and what they remember after it.

    Args:
        terms: what clients do, with what clip and noise, and what comes before the first round.
        clients: who they are.
        noise: the clients' noise in this round.
        t: the round, from 0; a stage is below 0.
        received: what the server broadcast, by name.
        memory: what they remember, by name; nothing before their first round.
    """
    program, plan, stages, _ = terms
    if t < 0:
        require(-len(stages) <= t, f"round {t}: there is none")
        return release_stage(stages[t], t, clients, received, plan, noise), {}
    clients = transformed(clients, received, noise(clients[0].id, 0).exact)
    blank = program.init(received["theta"], len(clients))
    state = unflatten(blank, memory) if memory else blank
    releases, after = program.release(received, clients, state, plan, noise)
    return releases, flatten(program.train_own(received, clients, after))


def answer(
    terms: Terms, owner: Owner, request: Request, received: Mapping[str, Array]
) -> tuple[Array, float]:
    """An owner's release, if its budget covers it, and all that the run was charged for so far."""
    if request.t < 0:
        return owner.stage(terms, received, request)
    return owner.release(terms, received, request)


def named(program: Program, parameters: NDArrays) -> dict[str, Array]:
    """Flower's list of arrays, by name: theta, then what the program needs in alphabetical order.

    A list of one more or two more than that carries the proximal pull or a map, or a transform's
    factors.
    """
    names = ["theta", *sorted(program.needs - {"theta"})]
    last = parameters[-1] if parameters else np.zeros(())
    more = {1: ["P" if last.ndim else "mu"], 2: ["U_A", "U_G"]}.get(
        len(parameters) - len(names), []
    )
    require(
        len(parameters) == len(names) + len(more),
        f"parameters: {len(parameters)} arrays; this client takes {', '.join(names)}",
    )
    return dict(zip(names + more, parameters, strict=True))


def round_of(config: Mapping[str, Scalar]) -> int:
    """The round that a config speaks of, from 0; a stage before the first is below 0."""
    number = config.get("server_round")
    require(type(number) is int, "config: must say server_round, from 1")
    assert isinstance(number, int)
    return number - 1


def _received(program: Program, parameters: NDArrays, t: int) -> dict[str, Array]:
    """What a client received; before the first round that is a map, or nothing."""
    if t >= 0:
        return named(program, parameters)
    require(len(parameters) <= 1, f"parameters: {len(parameters)} arrays; a stage takes P alone")
    return dict(zip(["P"], parameters, strict=False))


class SimulatedClient(NumPyClient):
    """One client of a simulation.

    Args:
        program: what it does.
        plan: the clip and the noise.
        client: who it is, and its records.
        state: where it keeps what it remembers; the state of Flower's context lasts for a run.
        seed: of the run, from which the noise is drawn.
        stages: what is released before the first round.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        client: Client,
        state: RecordDict,
        seed: int = 0,
        stages: Sequence[Stage] = (),
    ) -> None:
        self.terms, self.client = Terms(program, plan, stages), client
        self.state, self.seed = state, seed

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Fit:
        """This client's release."""
        t, kept = round_of(config), self.state.get("memory", ArrayRecord())
        assert isinstance(kept, ArrayRecord)
        received = _received(self.terms.program, parameters, t)
        memory = unpack_arrays(kept)
        noise = seeded(self.seed, t)
        (release,), after = simulate(
            self.terms, [self.client], noise, t=t, received=received, memory=memory
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
        stages: what is released before the first round.
    """

    def __init__(
        self, program: Program, plan: Plan, owner: Owner, stages: Sequence[Stage] = ()
    ) -> None:
        self.terms, self.owner = Terms(program, plan, stages), owner

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Fit:
        """This owner's release, if its budget covers it."""
        t = round_of(config)
        received = _received(self.terms.program, parameters, t)
        request = Request(run=str(config.get("run", "")), t=t, asked=str(config.get("job", "")))
        try:
            release, charged = answer(self.terms, self.owner, request, received)
        except RefusedError as error:  # Flower sends the text of what is raised to the server
            hidden(error)
            raise ConfigError(error.told) from None
        except ConfigError:
            raise
        except Exception as error:
            raise hidden(error) from None
        return [np.asarray(release)], self.owner.client.data.size, {"charged": charged}
