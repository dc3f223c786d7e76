"""Writes the files of predictions that docs/score.md scores: of scikit-learn, Keras, Hugging Face, a language model, a
spreadsheet and a regression."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

random = np.random.default_rng(0)

# The five commonest files: three classes, two classes in words, a number
three = random.dirichlet(np.full(3, 0.4), 200)
truth = np.array([random.choice(3, p=row) for row in three])
frame = pd.DataFrame(three, columns=["class_0", "class_1", "class_2"])
frame.assign(y_true=truth, y_pred=three.argmax(1)).to_csv("sklearn.csv")
np.savez("keras.npz", predictions=three.astype(np.float32), labels=truth)
words, yes = np.where(truth == 1, "yes", "no"), three[:, 1]
with Path("reviews.jsonl").open("w") as reviews, Path("gold.jsonl").open("w") as gold:
    for word, p in zip(words, yes, strict=True):
        scores = [{"label": "yes", "score": p}, {"label": "no", "score": 1 - p}]
        reviews.write(json.dumps(sorted(scores, key=lambda each: -each["score"])) + "\n")
        gold.write(json.dumps({"label": word}) + "\n")
table = {"row_id": range(200), "reviewer": "ann", "comment": "fine", "no": 1 - yes, "yes": yes, "label": words}
pd.DataFrame(table).to_csv("table.csv", index=False)
mean = random.normal(size=200)
quantiles = {"mean": mean, "0.1": mean - 1.28, "0.5": mean, "0.9": mean + 1.28}
pd.DataFrame(quantiles | {"target": mean + random.normal(size=200)}).to_csv("forecasts.csv", index=False)

# Two models of scikit-learn, and what they predict for noise
x, y = load_digits(return_X_y=True)
x, noise = x / 16, random.uniform(size=(300, 64))
models = {"forest": RandomForestClassifier(50, random_state=0), "logistic": LogisticRegression(C=0.1)}
for name, model in models.items():
    model.fit(x[:600], y[:600])
    columns = [f"prob_{label}" for label in model.classes_]
    pd.DataFrame(model.predict_proba(x[600:]), columns=columns).to_csv(f"{name}.csv", index=False)
    pd.DataFrame(model.predict_proba(noise), columns=columns).to_csv(f"{name}_noise.csv", index=False)
np.save("labels.npy", y[600:])

# A language model's log-probability for the token of each class
names = ["negative", "neutral", "positive"]
with Path("model.jsonl").open("w") as file:
    for number in range(200):
        label, scores = random.integers(3), random.normal(-3, 1, 3)
        scores[label] += 1.5
        line = {"id": number, "label": names[label], "logprobs": dict(zip(names, scores.tolist(), strict=True))}
        file.write(json.dumps(line) + "\n")
