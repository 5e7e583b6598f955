"""Adam in rotated bases (arXiv 2602.03515, algorithms 1 and 2, second moments, both sides)."""

import torch
from torch import Tensor


def path(
    weight: Tensor,
    gradients: list[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    refresh: int,
) -> list[Tensor]:
    """Return the weight (M, N) after each step, without a weight decay."""
    (beta1, beta2), (rows, columns) = betas, weight.shape
    m = v = torch.zeros_like(weight)
    left, right = weight.new_zeros(rows, rows), weight.new_zeros(columns, columns)
    seen = []
    for t, g in enumerate(gradients, start=1):
        left = beta2 * left + (1 - beta2) * (g @ g.T)
        right = beta2 * right + (1 - beta2) * (g.T @ g)
        if t == 1:  # eigenvectors, from the largest eigenvalue to the smallest
            U, V = (torch.linalg.eigh(S).eigenvectors.flip(1) for S in (left, right))
        elif t % refresh == 0:  # one step of the power iteration
            i = torch.diag(U.T @ left @ U).argsort(descending=True)
            j = torch.diag(V.T @ right @ V).argsort(descending=True)
            v = v[i][:, j]
            U = torch.linalg.qr(left @ U[:, i]).Q
            V = torch.linalg.qr(right @ V[:, j]).Q
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (U.T @ g @ V) ** 2
        m_hat, v_hat = U.T @ m @ V / (1 - beta1**t), v / (1 - beta2**t)
        weight = weight - lr * U @ (m_hat / (v_hat.sqrt() + eps)) @ V.T
        seen.append(weight)
    return seen
