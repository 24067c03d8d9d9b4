"""Statements that are to be accepted, refused or left to the database, in all dialects."""

DIALECTS = ("duckdb", "mysql", "hive", "postgres", "sqlite")

QUERIES = (
    "select age from people",
    "SELECT * FROM people",
    "-- who\nSELECT\n  age -- in years\nFROM people",
    "/* who; */ SELECT age /* in; years */ FROM people",
    "SELECT age, pay FROM people WHERE age = (SELECT max(age) FROM people)",
    "SELECT id, sum(n * price) AS total FROM parts JOIN orders USING (id) GROUP BY id HAVING "
    "sum(n * price) > 100",
    "SELECT name FROM shops WHERE EXISTS (SELECT id FROM orders JOIN parts USING (id) WHERE "
    "shops.id = orders.shop GROUP BY id HAVING count(*) > 2) LIMIT 0",
    "SELECT age FROM people -- that is all",
    "SELECT age FROM people\n-- none; of these\n-- SELECT b FROM c TO TRAIN d LABEL e INTO f;",
    # Words of a clause where they are none, and what takes `TO` for its own.
    "SELECT a FROM t ORDER BY a DESC LIMIT 10",
    "SELECT 1",
    "SELECT a b FROM t u",
    "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
    "SELECT a FROM t UNION SELECT b FROM u",
    "SELECT to_days, train, label FROM train",
    "SELECT 'x TO TRAIN y; LABEL z' AS s FROM t",
    "SELECT CASE WHEN a > 1 THEN 1 ELSE 0 END FROM t",
    "SELECT * FROM t WHERE a BETWEEN 1 AND 2",
    "SELECT * FROM t WHERE a IS NOT NULL",
    "SELECT * FROM t WHERE a IN (1, 2)",
    "SELECT * FROM t WHERE day > now() - INTERVAL '1' YEAR",
)

OF_DUCKDB = (
    "FROM people",
    "SELECT * FROM 'people.parquet'",
    "SELECT * FROM read_csv('a.csv') TABLESAMPLE 10%",
    "SELECT * FROM t WHERE day > now() - INTERVAL 1 DAY",
)

CLAUSES = (
    "TO TRAIN DNNClassifier WITH model.n_classes=3, model.hidden_units=[10, 20] LABEL class "
    "INTO irises",
    'TO TRAIN DNNClassifier WITH optimizer=Adam, note="a, b", rate=-1.5e-3, on=TRUE COLUMN '
    "people.age, EMBEDDING(CATEGORY_HASH(people.name, 100), 8) LABEL 'people.pay' INTO of.pay",
    "TO TRAIN DNNLinearCombinedClassifier COLUMN CROSS([age, sex], 100) FOR "
    "linear_feature_columns COLUMN age, concat(\",\", a, b), concat(',', a, b) for "
    'dnn_feature_columns LABEL "label" INTO wide',
    "TO TRAIN some-domain.com/a/regressors:v0.2/MyRegressor LABEL pay INTO pays",
    'TO TRAIN m WITH validation.select="SELECT a, \\";\\" FROM v WHERE b = \'c\'" LABEL y INTO z',
    "TO TRAIN m COLUMN *, INDICATOR(age) LABEL y INTO z",
    "to train m label y into z",
    "TO -- one\nTRAIN m /* two; */ WITH a=1, -- three\n b=[] LABEL y INTO z -- four",
    "TO TRAIN clicks.custom_model INTO z",
    "TRAIN DNNRegressor WITH a=1 COLUMN b LABEL y INTO z",
    "LABEL income INTO my_elasticdl_model",
    "TO PREDICT shop.answers.pay USING of.pay",
    "TO PREDICT answers USING pays WITH predict.replace=true",
    "PREDICT answers.pay USING pays",
    'TO EVALUATE pays WITH validation.metrics="MAE,MSE" LABEL pay INTO scores',
    "TO EVALUATE pays",
    "TO EXPLAIN pays",
    "TO EXPLAIN pays WITH plots=force USING TreeExplainer INTO shop.shares",
)

COMMANDS = ("SHOW TRAIN pays", "show models", "-- which?\nDROP MODEL of.pay")

SQL = (
    "CREATE TABLE train AS SELECT label, into_x FROM predict",
    "ALTER TABLE t RENAME TO train",
    "INSERT INTO t VALUES (1, 'a; TO TRAIN b LABEL c INTO d')",
    "SELECT train, predict FROM t train",
    "DROP TABLE t",
)

REFUSED = (
    # statement, line and column of the caret, a part of the message
    ("DROP TABLE TO PREDICT", (1, 1), "a SELECT is expected before TO PREDICT"),
    ("describe table to predict a using b;", (1, 1), "a SELECT is expected"),
    ("to train a with b = c label d into e", (1, 1), "a SELECT is expected before TO TRAIN"),
    ("SELECT 1;\n  SELECT * FROM t TO TRAIN", (2, 27), "the name of a model is expected"),
    ("SELECT * FROM t TO TRAIN m LABEL y;", (1, 35), "INTO and a name for the model"),
    ("SELECT * FROM t TO TRAIN m WITH LABEL y INTO z", (1, 33), "an attribute such as"),
    ("SELECT * FROM t TO TRAIN m WITH a LABEL y INTO z", (1, 35), "= and a value for a"),
    ("SELECT * FROM t TO TRAIN m COLUMN f(a LABEL y INTO z", (1, 39), ", or ) is expected"),
    ("SELECT * FROM t TO TRAIN m COLUMN a FOR LABEL y INTO z", (1, 41), "dnn_feature_columns"),
    ("SELECT * FROM t TO TRAIN m WITH a=1,\na=2 LABEL y INTO z", (2, 1), "a is given twice"),
    ('SELECT * FROM t TO TRAIN "some', (1, 26), "this quote does not end"),
    ('SELECT 1; "', (1, 11), "this quote does not end"),
    ("SELECT 1;\nSELECT 'a", (2, 8), "this quote does not end"),
    ("SELECT * FROM t TO TRAIN m INTO z /* a", (1, 35), "this comment does not end"),
    ("SELECT * FROM t TO TRAIN m WITH b =?? c LABEL d INTO e", (1, 36), "'?' has no meaning"),
    ("SELECT * FROM t TO TRAIN a LABEL b INTO c SELECT d FROM e;", (1, 43), "'SELECT d FROM e;'"),
    ("SELECT * FROM t TO TRAIN a SELECT b FROM c", (1, 28), "INTO and a name"),
    ("SELECT SELECT 1; SELECT 1 TO TRAIN a LABEL b INTO c", (1, 8), "this is no SQL at 'SELECT'"),
    ("SELECT a FROM t TO PREDICT p USING m; SELECT SELECT 1", (1, 46), "this is no SQL"),
    ("SELECT SELECT 1 TO TRAIN a LABEL b INTO c", (1, 8), "this is no SQL at 'SELECT'"),
    ("SELECT a FROM b SHOW TRAIN c;", (1, 22), "this is no SQL at 'TRAIN'"),
    ("SHOW TRAIN ;", (1, 12), "the name of a model"),
    ("SHOW TRAIN a bad;", (1, 14), "; is expected before 'bad;'"),
    ("SELECT * FROM t TRAIN m WITH a=1 LABEL b;", (1, 41), "INTO and a name for the model"),
    ("SELECT * FROM t TO PREDICT p;", (1, 29), "USING and the name of a model"),
    ("SELECT * FROM t TO EVALUATE m INTO", (1, 35), "a name for the table"),
    ("SELECT * FROM t WHERE (a TO TRAIN m LABEL y INTO z;", (1, 29), "this is no SQL at 'TRAIN'"),
    ("SELECT * FROM t TO EXPLAIN m USING", (1, 35), "the name of an explainer"),
    # Which SQLFlow takes, and shoal has not.
    ('SELECT * FROM t TO RUN a/image:1 CMD "b" INTO c', (1, 20), "TO RUN is not part of shoal"),
    ('SELECT * FROM t TO RUN "image"', (1, 20), "TO RUN is not part of shoal"),
    ("SELECT * FROM t TO MAXIMIZE sum(n) INTO c", (1, 20), "TO MAXIMIZE is not part of shoal"),
    ("SELECT * FROM t TO MINIMIZE sum(n) INTO c", (1, 20), "TO MINIMIZE is not part of shoal"),
)
