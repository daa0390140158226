"""Attention over neighbours in NumPy and float64, with its gradients: what kernels must compute."""

import dataclasses

import numpy as np

from pallas_kernels.arguments.attention import Form, Operands


@dataclasses.dataclass(frozen=True)
class Result:
    """Everything that the passes compute, in float64.

    ``largest`` has the largest term of the sums that each gradient is, which may cancel.
    """

    y: np.ndarray
    lse: np.ndarray
    weights: np.ndarray
    delta: np.ndarray
    gradients: Operands
    largest: dict[str, float]


def attention(op, graph, operands: Operands, form: Form, dy, dweights=None) -> Result:
    """The sums and their gradients for ``dy`` and, if given, the gradient ``dweights``."""
    slots, count = graph.num_edges, int(graph.indptr[-1])
    receivers = np.repeat(np.arange(graph.num_rows), np.diff(np.asarray(graph.indptr)))
    senders = np.asarray(graph.indices)[:count]
    heads, groups = operands.heads, operands.columns.shape[1]
    with np.errstate(all="ignore"):
        dy = _wide(dy)[receivers]
        at_rows = _wide(operands.rows)[receivers]
        at_columns = np.repeat(_wide(operands.columns)[senders], heads // groups, axis=1)
        values = np.repeat(_wide(operands.summed)[senders], heads // groups, axis=1)
        logits = np.zeros((count, heads))
        if operands.edge_logits is not None:
            logits = _wide(operands.edge_logits)[:count]

        def sum_rows(x):
            return _add_at(graph.num_rows, receivers, x)

        def sum_columns(x, groups):
            total = _add_at(graph.num_cols, senders, x)
            return total.reshape(graph.num_cols, groups, -1, *total.shape[2:]).sum(2)

        if operands.edge_values is not None:
            added = _wide(operands.edge_values)[:count]
            values = values + np.repeat(added, heads // groups, axis=1)
        term, features = 0.0, None
        if operands.edge_features is not None:
            features, kernel = _wide(operands.edge_features)[:count], _wide(operands.edge_kernel)
            term = np.einsum("ef,fhd->ehd", features, kernel)
        ends = at_rows, at_columns + term
        score, pull_back = _scores(op, *ends, logits, operands.attention, form)
        peak = np.full((graph.num_rows, heads), -np.inf)
        np.maximum.at(peak, receivers, score)
        powers = np.exp(score - np.where(peak == -np.inf, 0, peak)[receivers])
        total = sum_rows(powers)
        p = powers / np.where(total == 0, 1, total)[receivers]
        lse = np.where(total == 0, -np.inf, peak + np.log(total))
        m = np.ones((count, heads))
        if operands.seed is not None:
            m = _draws(np.asarray(operands.seed), count, heads) >= form.dropped
            m = m * form.kept_scale
        weights = np.zeros((slots, heads))
        weights[:count] = p * m
        y = sum_rows((p * m)[..., None] * values)
        dweight = np.sum(dy * values, -1)
        if dweights is not None:
            dweight = dweight + _wide(dweights)[:count]
        delta = sum_rows(p * m * dweight)
        dscore = p * (m * dweight - delta[receivers])
        drow, dcolumn, dlogit, dvector = pull_back(dscore)
        dvalue = (p * m)[..., None] * dy
        own_values = operands.values is not None
        gradients = Operands(
            sum_rows(drow),
            sum_columns(dcolumn if own_values else dcolumn + dvalue, groups),
            sum_columns(dvalue, groups) if own_values else None,
            edge_logits=None if operands.edge_logits is None else _padded(dlogit, slots),
            attention=dvector,
        )
        # Where heads share them, the caller of the kernels makes the gradient from the weights.
        if operands.edge_values is not None and groups == heads:
            gradients = gradients.replace(edge_values=_padded(dvalue, slots))
        if features is not None:
            gradients = gradients.replace(
                edge_features=_padded(np.einsum("ehd,fhd->ef", dcolumn, kernel), slots),
                edge_kernel=np.einsum("ef,ehd->fhd", features, dcolumn),
            )
        terms = {"rows": drow, "columns": dcolumn if own_values else dcolumn + dvalue}
        largest = {name: float(np.abs(term).max()) for name, term in terms.items()}
    return Result(y, lse, weights, delta, gradients, largest)


def _wide(array):
    return np.asarray(array).astype(np.float64)


def _padded(of_edges, slots):
    """Zeros in padding slots, after the numbers of edges."""
    return np.pad(of_edges, [(0, slots - len(of_edges))] + [(0, 0)] * (of_edges.ndim - 1))


def _add_at(count, places, x):
    total = np.zeros((count, *x.shape[1:]))
    np.add.at(total, places, x)
    return total


def _scores(op, at_rows, at_columns, logits, vector, form):
    """The scores [E, H], and what takes their gradient to both ends, the logits and the vector."""
    if op == "dot":
        scores = form.scale * np.sum(at_rows * at_columns, -1) + logits

        def pull_back(d):
            scaled = form.scale * d[..., None]
            return scaled * at_columns, scaled * at_rows, d, None

        return scores, pull_back
    sums = at_rows + at_columns
    if op == "gat":
        sums = sums + logits

        def pull_back(d):
            d = d * np.where(sums >= 0, 1, form.slope)
            return d, d, d, None

        return _leaky(sums, form.slope), pull_back
    vector = _wide(vector)

    def pull_back(d):
        of_sums = d[..., None] * vector * np.where(sums >= 0, 1, form.slope)
        return of_sums, of_sums, d, np.sum(d[..., None] * _leaky(sums, form.slope), 0)

    return np.sum(vector * _leaky(sums, form.slope), -1) + logits, pull_back


def _leaky(x, slope):
    return np.where((x >= 0) | (x == -np.inf), x, slope * x)


def _draws(seed, edges, heads):
    """The hash that decides about dropout, [E, H]."""
    mixed = _mix(seed[0] ^ np.arange(edges, dtype=np.uint32))
    numbers = seed[1] + np.arange(heads, dtype=np.uint32) * np.uint32(0x9E3779B9)
    return _mix(mixed[:, None] ^ numbers)


def _mix(word):
    word = (word ^ (word >> np.uint32(16))) * np.uint32(0x7FEB352D)
    word = (word ^ (word >> np.uint32(15))) * np.uint32(0x846CA68B)
    return word ^ (word >> np.uint32(16))
