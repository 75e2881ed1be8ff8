"""Settings that several things share."""


class Inline:
    """The base of a dataclass whose fields stand in a config beside those of what holds it.

    A rule that holds a `Rate` has the keys `lr` and `schedule`, as if they were its own.
    """
