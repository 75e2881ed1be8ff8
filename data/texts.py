r"""Made-up texts: sequences of tokens, whose class shows in how often some tokens occur.

Tokens of natural text follow Zipf's law, and what a text is about shows in a few of them. So here:
a text of class c draws each token from $(1-\lambda)\,z + \lambda\,t_c$, where z is Zipf's law over
the vocabulary and $t_c$ the same law over the class's own topic, tokens that a seed chooses.
"""

from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array


class Texts(NamedTuple):
    r"""What made-up texts are like; the same values always give the same language.

    Attributes:
        vocabulary: tokens, of which 0 is padding.
        classes: how many.
        length: of the longest text; the shortest has a third of it.
        topic: how many tokens a class has of its own.
        share: $\lambda$, how many of a text's tokens come from its topic.
        language: chooses the order of the tokens, and the topics.
    """

    vocabulary: int = 1000
    classes: int = 8
    length: int = 32
    topic: int = 40
    share: float = 0.2
    language: int = 0

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Texts `(count, length)` int64, padded with 0, and their classes `(count,)`.

        >>> x, y = Texts(vocabulary=50, topic=5).draw(np.random.default_rng(0), 3)
        >>> x.shape, y.shape, bool((x[:, :10] > 0).all())
        ((3, 32), (3,), True)
        """
        own = np.random.default_rng(self.language)
        order = 1 + own.permutation(self.vocabulary - 1)
        topics = [own.choice(order, self.topic, replace=False) for _ in range(self.classes)]
        y = rng.integers(0, self.classes, count)
        shape = (count, self.length)
        common = order[rng.choice(len(order), shape, p=_zipf(len(order)))]
        told = np.stack(topics)[y[:, None], rng.choice(self.topic, shape, p=_zipf(self.topic))]
        x = np.where(rng.random(shape) < self.share, told, common)
        lengths = rng.integers(self.length // 3, self.length + 1, count)
        return np.where(np.arange(self.length) < lengths[:, None], x, 0), y


def _zipf(n: int) -> Array:
    p = 1 / np.arange(1, n + 1)
    return np.asarray(p / p.sum())
