# What admission does under bursts: more goodput, more rejections, and which tenants pay for it.
headway compare examples/11_admission.yaml --stage admission --per class --policies "
  always, saturation, {name: tier-shed, max_load: 16},
  {name: deadline, targets: {realtime: 1s, batch: 1s}}, {name: token-bucket, rate: 12}"
