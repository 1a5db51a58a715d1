# A trace of sessions: what it holds, other traces made of it, and the five controls on it.
trace=$PWD/examples/08_sessions.jsonl
headway trace inspect examples/08_sessions.jsonl --capacity 200,inf --instances 1,4
folder=$(mktemp -d)
cd "$folder"
headway trace convert "$trace" all.headway.jsonl.gz
headway trace cap all.headway.jsonl.gz short.headway.jsonl.gz --max-turns 4
headway trace slice all.headway.jsonl.gz early.headway.jsonl.gz --sessions 0:10
cd "$OLDPWD"
rm -r "$folder"
headway controls examples/08_traces.yaml
