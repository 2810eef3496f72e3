"""Basic blocks, dominators and natural loops of a kernel's instructions."""

from dataclasses import dataclass, field

from kernels.disassembly import TARGETS

ENDS = ("EXIT", "RET", "KILL", "BPT")


@dataclass
class Block:
    first: int  # of the kernel's instructions
    end: int
    after: list = field(default_factory=list)  # numbers of blocks that may follow


@dataclass
class Loop:
    header: int
    blocks: set  # of inner loops too
    inner: list = field(default_factory=list)  # loops right inside


def always(instruction):
    """Whether it is carried out by every thread that reaches it."""
    return instruction.predicate in ("", "@PT", "@UPT") and not instruction.operands.startswith(
        ("P", "!P", "UP", "!UP", "~", "R")
    )


def targets_of(kernel, instruction):
    """Addresses that a branch may go to; None for what is no branch."""
    name = instruction.opcode.split(".")[0]
    if name in ("BRA", "JMP", "CALL"):
        return [kernel.labels[t] for t in TARGETS.findall(instruction.operands) if t in kernel.labels]
    if name in ("BRX", "JMX"):
        return kernel.tables.get(instruction.address, [])
    return [] if name in ENDS else None


def blocks_of(kernel):
    """The control flow graph; block 0 begins the kernel. A call is taken to return behind itself."""
    code = kernel.instructions
    at = {instruction.address: i for i, instruction in enumerate(code)}
    starts = {0} | {at[a] for a in kernel.labels.values() if a in at}
    branches = {}
    for i, instruction in enumerate(code):
        targets = targets_of(kernel, instruction)
        if targets is not None:
            branches[i] = [at[t] for t in targets if t in at]
            starts.add(i + 1)
            starts.update(branches[i])
    ordered = sorted(s for s in starts if s < len(code))
    number = {start: i for i, start in enumerate(ordered)}
    blocks = []
    for start, end in zip(ordered, [*ordered[1:], len(code)]):
        last = code[end - 1]
        targets = branches.get(end - 1)
        after = [number[t] for t in targets or []]
        falls = targets is None or not always(last) or last.opcode.startswith("CALL")
        if falls and end < len(code):
            after.append(number[end])
        blocks.append(Block(start, end, sorted(set(after))))
    return blocks


def reverse_postorder(blocks):
    order, seen, stack = [], {0}, [(0, iter(blocks[0].after))]
    while stack:
        node, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(blocks[following].after)))
    return order[::-1]


def dominators(blocks):
    """The immediate dominator of every block that is reached (Cooper, Harvey and Kennedy 2001)."""
    order = reverse_postorder(blocks)
    rank = {node: i for i, node in enumerate(order)}
    before = {node: [] for node in order}
    for node in order:
        for following in blocks[node].after:
            before[following].append(node)
    found = {0: 0}

    def common(a, b):
        while a != b:
            while rank[a] > rank[b]:
                a = found[a]
            while rank[b] > rank[a]:
                b = found[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [p for p in before[node] if p in found]
            new = known[0]
            for other in known[1:]:
                new = common(new, other)
            if found.get(node) != new:
                found[node], changed = new, True
    return found, before


def loops_of(blocks):
    """The outermost natural loops, each with those inside it; loops of one header are one."""
    if not blocks:
        return []
    found, before = dominators(blocks)

    def dominates(a, b):
        while b != a and b != 0:
            b = found[b]
        return a == b

    bodies = {}
    for node in found:
        for header in blocks[node].after:
            if not dominates(header, node):
                continue
            body = bodies.setdefault(header, {header})
            waiting = [node]
            while waiting:
                block = waiting.pop()
                if block not in body:
                    body.add(block)
                    waiting += before[block]
    outermost, open_loops = [], []
    for header in sorted(bodies, key=lambda h: (-len(bodies[h]), h)):
        loop = Loop(header, bodies[header])
        around = [other for other in open_loops if header in other.blocks and loop.blocks <= other.blocks]
        owner = min(around, key=lambda other: len(other.blocks), default=None)
        (outermost if owner is None else owner.inner).append(loop)
        open_loops.append(loop)
    return sorted(outermost, key=lambda loop: loop.header)
