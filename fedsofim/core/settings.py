"""Groups of settings that several parts share, such as a learning rate and its schedule."""


class Inline:
    """Base of a dataclass that is held by a part; its fields are keys of that part in the config.

    A rule that holds a `Rate` has the keys `lr` and `schedule`, as if they were its own.
    """
