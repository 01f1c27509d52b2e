"""Sort, scan, select and count on the device: orders of a shop, by customer and by size.

    python examples/17_algorithms.py

Each step is an operation on tensors, and each answer is compared with NumPy's.
"""

import numpy as np

import numbasync as na

ORDERS, CUSTOMERS = 200_000, 500


def orders() -> tuple[np.ndarray, np.ndarray]:
    """Who ordered, and for how much."""
    rng = np.random.default_rng(17)
    who = rng.integers(0, CUSTOMERS, ORDERS).astype(np.int32)
    return who, rng.integers(1, 1000, ORDERS)


async def main() -> None:
    al = na.algorithms
    who, amount = orders()
    w, a = await na.from_host(who), await na.from_host(amount)

    # Orders of one customer side by side, in the order in which they came.
    by_customer, amounts = await al.sort_by_key(w, a)
    counts = await al.bincount(w)
    begins = await al.scan(counts, exclusive=True)
    # What each customer has spent: differences of a running sum.
    spent_before = await al.scan(amounts, exclusive=True)
    first = await begins.to_host()
    spent = np.diff(np.append(await spent_before.to_host(), amount.sum())[[*first, ORDERS]])
    np.testing.assert_array_equal(await by_customer.to_host(), np.sort(who))
    np.testing.assert_array_equal(spent, np.bincount(who, amount).astype(np.int64))

    best, customers = await al.topk(spent, 3)
    for one, number in zip(await best.to_host(), await customers.to_host(), strict=True):
        print(f"customer {number} has spent {one:,}")
    np.testing.assert_array_equal(await best.to_host(), np.sort(spent)[::-1][:3])

    large = await al.select(w, amount > 990)
    buyers = await al.unique(large)
    np.testing.assert_array_equal(await buyers.to_host(), np.unique(who[amount > 990]))
    sizes, edges = await al.histogram(a, 4, (0, 1000))
    np.testing.assert_array_equal(await sizes.to_host(), np.histogram(amount, 4, (0, 1000))[0])
    print(f"{len(large):,} orders above 990, of {len(buyers)} customers")
    print(f"orders by size, from {(await edges.to_host()).tolist()}: {await sizes.to_host()}")


if __name__ == "__main__":
    na.run(main())
