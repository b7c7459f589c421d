"""What every CPU rank imports, imported once: the ranks of all tests are forked from it.

megatron-core takes five seconds to import, which with four ranks on two cores is ten for each
test. Where Transformer Engine is installed nothing is preloaded: a process is of one engine.
"""

from importlib.util import find_spec

from genomoe.parallel import cpu_engine

if find_spec("transformer_engine") is None:
    cpu_engine.install()
