# What admission buys and costs under bursts: goodput up, rejects up, and who pays.
headway compare examples/11_admission.yaml --stage admission --per class --policies "
  always, saturation, {name: tier-shed, max_load: 16},
  {name: deadline, targets: {realtime: 1s, batch: 1s}}, {name: token-bucket, rate: 12}"
