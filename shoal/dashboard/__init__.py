"""`shoal dashboard`: a page in the browser that shows one job while it runs and after its end.

source.py asks the job, here or in a cluster; course.py and lanes.py remember what it told, and
facts.py says what the page shows of it. watch.py does so once a second on a thread, server.py
serves it to those who have the token, and run.py is the command. What the browser does with it is
in static/, which is plain HTML, CSS and JavaScript; its charts are drawn by uPlot.
"""
