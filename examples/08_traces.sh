# A trace of sessions: inspect it, transform it, find the best policy for your own table, and run the five controls.
trace=$PWD/examples/08_sessions.jsonl
table=$PWD/examples/08_own_table.csv
headway trace inspect examples/08_sessions.jsonl --capacity 200,inf --instances 1,4
folder=$(mktemp -d)
cd "$folder"
headway trace convert "$trace" all.headway.jsonl.gz
headway trace cap all.headway.jsonl.gz short.headway.jsonl.gz --max-turns 4
headway trace slice all.headway.jsonl.gz early.headway.jsonl.gz --sessions 0:10
headway trace convert "$table" mine.headway.jsonl.gz \
    --map arrival=ts_ms:ms,prompt=in_tok,output=out_tok,session=conv,tenant=org 2>/dev/null
headway compare mine.headway.jsonl.gz
cd "$OLDPWD"
rm -r "$folder"
headway controls examples/08_traces.yaml
