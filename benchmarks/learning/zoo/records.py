"""The records that the models of this folder learn: clicks and purchases of a planted model."""

import numpy as np
import tensorflow as tf

USERS, ITEMS, CATEGORIES, LAST = 2_000, 1_000, 20, 8
INTEGERS = ("user", "item", "category")


def planted(count, seed):
    """Columns of `count` records: ids by Zipf's law, a price, the last items, and two labels.

    A user's taste and an item's quality are vectors of length 6; a click is drawn with the logistic
    function of their product, of a bias of the category, of the price, and of how many of the last
    items are of the item's category. A purchase is rarer, and weighs the same parts otherwise.
    """
    fixed = np.random.default_rng(0)
    tastes, qualities = fixed.normal(size=(USERS, 6)), fixed.normal(size=(ITEMS, 6))
    category_of = fixed.integers(CATEGORIES, size=ITEMS)
    biases = fixed.normal(size=CATEGORIES)
    draw = np.random.default_rng(seed)
    user = np.minimum(draw.zipf(1.3, count) - 1, USERS - 1)
    item = np.minimum(draw.zipf(1.2, count) - 1, ITEMS - 1)
    last = np.minimum(draw.zipf(1.2, (count, LAST)) - 1, ITEMS - 1)
    last[np.arange(LAST) >= draw.integers(1, LAST + 1, size=(count, 1))] = -1  # shorter ones
    category = category_of[item]
    price = draw.normal(size=count).astype(np.float32)
    match = (tastes[user] * qualities[item]).sum(1) / 2
    alike = ((category_of[last] == category[:, None]) & (last >= 0)).sum(1)
    click = match + biases[category] - 0.5 * price + alike - 0.5
    purchase = match - biases[category] - price + 0.5 * alike - 1.5
    labels = [draw.random(count) < 1 / (1 + np.exp(-logit)) for logit in (click, purchase)]
    # A place for "no item": ids of a padded list begin at 1.
    columns = {"user": user, "item": item, "category": category, "price": price, "last": last + 1}
    return columns | dict(zip(("click", "purchase"), (np.float32(x) for x in labels), strict=True))


def fed(*names, labels=("click",)):
    """A feed_batch with these columns as features."""

    def feed_batch(columns, mode, metadata):
        features = {name: columns[name] for name in names}
        if "last" in features and not isinstance(features["last"], tf.Tensor):
            features["last"] = tf.reshape(features["last"].flat_values, [-1, LAST])
        wanted = [columns[name] for name in labels]
        return (
            features
            if mode == "prediction"
            else (
                features,
                wanted[0] if len(wanted) == 1 else dict(zip(labels, wanted, strict=True)),
            )
        )

    return feed_batch
