"""Graphviz source of runs of stochastic graphs, with the shapes and colours of the paper's figure 1."""

from html import escape

from ..graph.trace import Trace
from .anatomy import GROUND, Node, anatomy, format_shape, is_small
from .style import DARK, INK, PALE


def to_dot(trace: Trace) -> str:
    """Return Graphviz source with the parents, logits, noise, operations and state of every node.

    Temperatures are written as λ, since a run does not record them unless the program itself draws relaxed variables.

    >>> import torch
    >>> from concretely import OneHotCategorical, mode, run
    >>> "argmax" in to_dot(run(lambda draw: draw("D", OneHotCategorical(logits=torch.zeros(3))), mode=mode.Discrete()))
    True
    """
    nodes = anatomy(trace)
    style = f'style=filled, fillcolor=white, color="{DARK}", fontcolor="{INK}", fontname="sans-serif", fontsize=10'
    lines = [
        'rankdir=BT; labelloc=b; labeljust=l; fontname="sans-serif"; fontsize=11',
        f"node [{style}]",
        f'edge [color="{INK}", arrowsize=0.6]',
    ]
    entrances, keys = dict[str, list[str]](), {node.name: f"n{place}" for place, node in enumerate(nodes)}
    for place, node in enumerate(nodes):
        statements, entrances[node.name] = _statements(node, keys[node.name], detailed=is_small(nodes))
        title = f'label="{_quoted(f"{node.name} ∼ {node.law}")}"; color="{PALE}"'
        lines += [f"subgraph cluster_{place} {{", f"  {title}", *(f"  {line}" for line in statements), "}"]
    for child, parents in trace.parents.items():
        lines += [f"{keys[parent]}_state -> {entrance}" for parent in parents for entrance in entrances[child]]
    return "\n".join(["digraph {", *(f"  {line}" for line in lines), "}", ""])


def _statements(node: Node, key: str, *, detailed: bool) -> tuple[list[str], list[str]]:
    """Return the statements of a node, and the parts that arrows from its parents point to."""
    lines, entrances = list[str](), list[str]()
    for unit in range(node.units if detailed else 1):
        sources = []
        for entry in range(node.n if detailed else min(node.n, 1)):
            logit, noise, total = (f"{key}_{part}_{unit}_{entry}" for part in ("logit", "noise", "sum"))
            index = node.subscript(unit, entry) if detailed else ""
            size = f"{node.logits[unit, entry]:.3g}" if detailed else format_shape(node.logits.shape)
            lines.append(f'{logit} [shape=circle, label="log α{index}\\n{size}"]')
            entrances.append(logit)
            if node.noise:
                lines.append(f'{noise} [shape=circle, fillcolor="{PALE}", label="{node.noise}{index}"]')
                lines.append(f'{total} [shape=circle, label="+"]')
                lines += [f"{leaf} -> {total}" for leaf in (logit, noise)]
            sources.append(total if node.noise else logit)
        for place, operation in enumerate(node.operations):
            step = f"{key}_step_{unit}_{place}"
            style = f'style="filled{"" if operation.discrete else ",rounded"}"'
            color = PALE if operation.stochastic else "white"
            lines.append(f'{step} [shape=box, {style}, fillcolor="{color}", label="{_quoted(operation.text)}"]')
            dashed = " [style=dashed]" if operation.gradient_only else ""
            lines += [f"{source} -> {step}{dashed}" for source in sources]
            lines.append(f"{step} -> {key}_state{dashed}")
            entrances += [] if sources else [step]
        if not node.operations:
            lines += [f"{source} -> {key}_state" for source in sources]
    return [*lines, f"{key}_state [shape=plain, style=solid, label=<{_cells(node, detailed=detailed)}>]"], entrances


def _cells(node: Node, *, detailed: bool) -> str:
    """Return a state as a Graphviz table."""
    side, border = (16, 1) if detailed else (6, 0)
    cells = ""
    for row in [node.brightness.flatten().tolist()] if detailed else node.table.tolist():
        shades = [f'BGCOLOR="#{f"{round(255 * shade):02x}" * 3}"' if shade == shade else "" for shade in row]
        entries = "".join(f'<TD WIDTH="{side}" HEIGHT="{side}" {shade}></TD>' for shade in shades)
        cells += f"<TR>{entries}</TR>"
    inner = f'<TABLE COLOR="{DARK}" BORDER="0" CELLBORDER="{border}" CELLSPACING="0" CELLPADDING="0">{cells}</TABLE>'
    style = f'COLOR="{DARK}" BGCOLOR="{GROUND if node.observed else "white"}"'
    style += "" if node.discrete else ' STYLE="ROUNDED"'
    return f'<TABLE {style} CELLBORDER="0" CELLPADDING="3"><TR><TD>{inner}</TD></TR></TABLE>'


def _quoted(text: str) -> str:
    """Escape text for a quoted Graphviz string, in which entities and backslashes are special."""
    printable = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return escape(printable, quote=False).replace("\\", "\\\\").replace('"', '\\"')
