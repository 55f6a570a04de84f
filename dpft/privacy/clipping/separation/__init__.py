"""How examples' gradients are told apart where no layer rule does it, and how that is proved.

A layer rule reads off the examples' gradients from what enters a layer and what comes back to it,
as long as both carry the batch in front. A weight that no rule knows (a class token, Llama's norm)
or that meets a tensor without the batch (BERT's positions, one row for all examples) needs another
way. It is found when a call signature of the model is met for the first time:

1. ``flow`` runs the model on two and on three rows, and so learns which tensors carry the batch
   and which module puts which weight to use.
2. ``regions`` finds the layers with a rule that meet one row for all examples, which are given a
   row for each, and chooses the smallest modules around the other uses that turn one example's
   inputs into one example's outputs. The choice is kept for the next call of the signature.
3. ``mapping`` runs these modules once per example, over weights expanded to one for each example:
   the gradients of the expanded weights are the examples' own.
4. ``proof`` compares all that is recorded with the bare model, on few rows of the batch at hand
   (``row_subset``). A plan that is not exact falls back to modules in the place of broadcasts, to
   larger modules, at last to the whole model, and then the model is refused.

That no row changes another is checked first, by re-executing each alone (``single_example``) and
by comparing the losses of subsets of rows (``cross_example``) and their gradients
(``cross_gradients``, ``fingerprints``).

Worked example: a scale that is no layer's weight, shared by all examples.

>>> import torch
>>> from torch import nn
>>> from dpft.privacy.clipping.recorder import Recorder
>>> from dpft.privacy.clipping.separation.flow import learn_flow
>>> from dpft.privacy.clipping.separation.mapping import MappedForward
>>> from dpft.privacy.clipping.separation.regions import RegionPlanner
>>> from dpft.privacy.clipping.trainable import TrainableParameters
>>> class Scaled(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.dense = nn.Linear(3, 3)
...         self.scale = nn.Parameter(torch.ones(3))
...     def forward(self, x):
...         return self.dense(x) * self.scale
>>> model = nn.Sequential(nn.Linear(3, 3), Scaled(), nn.Linear(3, 1))
>>> trainable = TrainableParameters(model)
>>> inputs = torch.ones(4, 3)
>>> flow = learn_flow(model, model.forward, ((inputs,), {}), trainable.now())
>>> [(use.name, use.status.name) for use in flow.uses][-4:-1]
[('1.dense.bias', 'BATCH'), ('1.scale', 'BATCH'), ('2.weight', 'BATCH')]

The dense layers have a rule, and meet the batch. The scale has none: the smallest module around it
becomes a region, in which the scale is expanded to four rows.

>>> (region,) = RegionPlanner(model, trainable).by_flow(flow, widening=True)
>>> type(region.module).__name__, dict(region.expanded)
('Scaled', {'scale': '1.scale'})
>>> recorder = Recorder(trainable)
>>> recorder.start(batch_size=4)
>>> MappedForward(region, recorder)(inputs).sum().backward()
>>> {name: tuple(use.values.shape) for name, (use,) in recorder.take().items()}
{'1.scale': (4, 3)}
"""
